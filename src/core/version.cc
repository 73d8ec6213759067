#include "thalweg/version.h"

namespace thalweg {

std::string_view version() { return THALWEG_VERSION_STRING; }

}  // namespace thalweg
