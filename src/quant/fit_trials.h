#pragma once

#include <array>

namespace thalweg::fit {

// A range of codes.
struct Range {
  float low;
  float high;
};

struct Affine {
  float scale;
  float offset;
};

// Trial fits that are evaluated together, one per vector lane. Each lane sums over the weights in order, so that
// results do not depend on the instruction set.
inline constexpr int kTrials = 16;
struct alignas(64) Trials : std::array<float, kTrials> {};

// Searches over runs of n weights, a multiple of 16, of at most 1 in magnitude.
struct TrialOps {
  // y = scale code with codes from low to -low - 1: the peak may go to either end, and starts at or near it.
  float (*scale)(const float* y, int n, float low);
  // y = scale code + offset with codes from 0 to high, scale >= 0; offset <= 0 if `not_positive`.
  Affine (*scale_and_offset)(const float* y, int n, float high, bool not_positive);
  // Which of y = scale code + offset, with the nearest codes, has the least squared error; ties go to the first.
  int (*least_error)(const float* y, int n, const Trials& scale, const Trials& offset, Range codes, float& error);
};

// The functions of the selected instruction set.
const TrialOps& trial_ops();

}  // namespace thalweg::fit
