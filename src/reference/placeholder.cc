#include "core/float16.h"
