#pragma once

// What the C blocks of the documentation use without declaring it.

#include <stdio.h>
#include <stdlib.h>

#include "thalweg/thalweg.h"
#include "thalweg/thalweg_ranks.h"

extern float *x, *y;
extern void *blocks, *ids;
extern int64_t T, S, K, N, E;
extern thalweg_device cpu;
extern thalweg_stream stream;
extern void* my_pool;
void my_pool_run(void* pool, int32_t workers, void (*work)(void* context, int32_t worker), void* context);
