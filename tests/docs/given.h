#pragma once

// What the C++ blocks of the documentation use without declaring it.

#include <cstdint>
#include <string>
#include <vector>

#include "thalweg/engine.h"
#include "thalweg/gated_delta_rule.h"
#include "thalweg/grammar.h"
#include "thalweg/model.h"
#include "thalweg/moe.h"
#include "thalweg/nn.h"

extern thalweg::ConstTensor q, k, v, g, beta, x, ids, cu_seqlens;
extern thalweg::Tensor o, y, state;
extern const void* blocks;
extern std::int64_t T, S, K, N, E, HK, HV;
extern const thalweg::Stream stream;
extern thalweg::HostWorkspace scratch;
extern thalweg::Engine engine;
extern std::vector<std::int32_t> prompt;
