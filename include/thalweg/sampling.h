#pragma once

// From logits to tokens: how the next token is chosen, and the probabilities that logits stand for. All settings are
// tensors, so that a graph that was captured once replays with other settings. Any thread may call these functions.

#include <cstdint>
#include <string_view>

#include "thalweg/api.h"
#include "thalweg/operation.h"
#include "thalweg/tensor.h"

THALWEG_API_BEGIN
namespace thalweg {

// How the next token is chosen: repetition penalty, then temperature, top-k, top-p and min-p, then a draw. The draw
// depends on seed and position only: a restored or repeated run draws the same. Ties go to the lower id.
struct Sampling {
  float temperature = 0.0F;     // 0: the likeliest token; only the penalty applies
  int top_k = 0;                // 0: all
  float top_p = 1.0F;           // the likeliest tokens that together have at least this probability; 1: all
  float min_p = 0.0F;           // tokens with at least this fraction of the likeliest token's probability; 0: all
  float repeat_penalty = 1.0F;  // logits of recent tokens: divided by it if positive, else multiplied; 1: off
  int repeat_last = 64;         // how many tokens are recent; 0: none, -1: all
  std::uint64_t seed = 0;

  bool operator==(const Sampling&) const = default;
};

// Chooses the next token of each of N sequences as Sampling says, each by its own settings; a setting without a tensor
// is Sampling's default. A probability of top-p is one among the tokens that top-k keeps. Probabilities are f64, on a
// GPU rounded to multiples of 2^-40 of the largest: the same settings draw the same token on every backend unless the
// draw or a cut lies within that rounding.
//
// A token that is not allowed counts as one of -infinity, after the penalty.
//
// Logits of which one is NaN or +infinity, or none above -infinity, before the penalty, after it, or among the tokens
// allowed: the CPU throws Error; a GPU writes token -1 and raises kFaultLogits. A slot out of range: Error, or token -1
// and kFaultStateIndices. A setting or length out of range: Error, or on a GPU one of the row's tokens, unspecified
// which. N = 0 is valid.
struct SampleTokensArgs {
  static constexpr std::string_view kName = "sample_tokens";
  ConstTensor logits;          // [N,V] f32, V at least 1
  ConstTensor lengths;         // [N] i32: tokens of the sequence so far, the position drawn for; optional if greedy
  ConstTensor history;         // [slots,C] i32, optional: the tokens so far; ids that are not in 0..V-1 are ignored
  ConstTensor slots;           // [N] i32, optional: row of history; n without it. -1: absent, token -1, nothing is read
  ConstTensor temperature;     // [N] f32, finite, 0 or more; optional as all settings
  ConstTensor top_k;           // [N] i32, 0 or more
  ConstTensor top_p;           // [N] f32, above 0, at most 1
  ConstTensor min_p;           // [N] f32, 0..1
  ConstTensor repeat_penalty;  // [N] f32, finite, above 0; needs history, with lengths[n] <= C
  ConstTensor repeat_last;     // [N] i32, -1 or more
  ConstTensor seed;            // [N,2] i32: the low and the high word
  Tensor tokens;               // [N] i32
  Tensor fault;                // [1] i32, optional: DeviceFault bits, written on GPUs only
  ConstTensor allowed;         // [N,ceil(V/32)] i32, optional: bit t % 32 of word t / 32: whether token t may be chosen
};

// The natural logarithm of softmax(logits): of one token of each row, and of its K likeliest in falling order, ties to
// the lower id. Sums are f64 or as good. Of a row with a logit that is NaN or +infinity, or none above -infinity, all
// logprobs are NaN and all top_tokens -1.
struct LogprobsArgs {
  static constexpr std::string_view kName = "logprobs";
  ConstTensor logits;   // [N,V] f32, V at least 1
  ConstTensor tokens;   // [N] i32 below V, optional; -1: absent, logprobs 0 and top_tokens -1, nothing is read
  Tensor logprob;       // [N] f32, with tokens
  Tensor top_tokens;    // [N,K] i32, optional, K in 1..V
  Tensor top_logprobs;  // [N,K] f32, with top_tokens
};

// The next decode step's input from the tokens that were chosen, in place: sequence n runs tokens[n] next, at its next
// position. One whose token is -1 or an end token becomes absent. Of an absent sequence (slot -1) nothing is read or
// written.
struct AdvanceArgs {
  static constexpr std::string_view kName = "advance";
  ConstTensor tokens;      // [N] i32
  ConstTensor end_tokens;  // [E] i32, optional
  Tensor ids;              // [N] i32, becomes tokens
  Tensor positions;        // [N] i32, grows by 1
  Tensor lengths;          // [N] i32, 0 or more, grows by 1
  Tensor slots;            // [N] i32, -1 or more, becomes -1 where the sequence ends
  Tensor history;          // [slots,C] i32, optional: the token goes to position lengths[n] of its slot, if both exist
};

void sample_tokens(const SampleTokensArgs& a, Workspace w, const Stream& s);
void logprobs(const LogprobsArgs& a, Workspace w, const Stream& s);
void advance(const AdvanceArgs& a, Workspace w, const Stream& s);

}  // namespace thalweg
THALWEG_API_END
