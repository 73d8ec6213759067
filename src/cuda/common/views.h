#pragma once

#include "cuda/common/tensor_view.h"
