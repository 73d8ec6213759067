// The installed headers: where they are, pkg-config says.
#include <thalweg/thalweg.h>
#ifndef THALWEG_KERNELS_ONLY
#include <thalweg/thalweg_ranks.h>
#endif
