#pragma once

// Every format of weights: how its blocks are decoded.

#include "cuda/experts/formats/bf16.h"
#include "cuda/experts/formats/f16.h"
#include "cuda/experts/formats/f32.h"
#include "cuda/experts/formats/iq4_nl.h"
#include "cuda/experts/formats/iq4_xs.h"
#include "cuda/experts/formats/mxfp4.h"
#include "cuda/experts/formats/q2_k.h"
#include "cuda/experts/formats/q3_k.h"
#include "cuda/experts/formats/q4_0.h"
#include "cuda/experts/formats/q4_1.h"
#include "cuda/experts/formats/q4_k.h"
#include "cuda/experts/formats/q5_0.h"
#include "cuda/experts/formats/q5_1.h"
#include "cuda/experts/formats/q5_k.h"
#include "cuda/experts/formats/q6_k.h"
#include "cuda/experts/formats/q8_0.h"
