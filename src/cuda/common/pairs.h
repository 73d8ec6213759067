#pragma once

#include "cuda/common/elements.h"
