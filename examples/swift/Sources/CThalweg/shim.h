// The installed header: where it is, pkg-config says.
#include <thalweg/thalweg.h>
