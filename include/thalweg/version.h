#pragma once

// The library's version, by semantic versioning: what a program was compiled for as macros, for C, C++ and the
// preprocessor; what runs as a function. CMake and the packages read it here.

#define THALWEG_VERSION_MAJOR 0
#define THALWEG_VERSION_MINOR 2
#define THALWEG_VERSION_PATCH 0
#define THALWEG_VERSION_STRING "0.2.0"

// To compare: #if THALWEG_VERSION_NUMBER >= 3000 is "0.3.0 or later".
#define THALWEG_VERSION_NUMBER (THALWEG_VERSION_MAJOR * 1000000 + THALWEG_VERSION_MINOR * 1000 + THALWEG_VERSION_PATCH)

#ifdef __cplusplus
#include <string_view>

#include "thalweg/api.h"

THALWEG_API_BEGIN
namespace thalweg {

// The version of the library itself, "0.2.0"; thalweg_version() in C. Any thread may call it at any time.
std::string_view version();

}  // namespace thalweg
THALWEG_API_END
#endif
