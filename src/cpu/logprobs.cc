#include <algorithm>
#include <limits>
#include <span>

#include "core/sampling.h"
#include "cpu/sampling.h"
#include "cpu/scratch.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

// A row is a task, and memory is only for as many workers as there are rows.
Stream row_stream(const LogprobsArgs& args, const Stream& stream) {
  const std::int64_t rows = std::max<std::int64_t>(args.logits.dim(0), 1);
  return Stream::cpu(static_cast<int>(std::min<std::int64_t>(thread_count(stream), rows)));
}

// The order of all tokens is as large as the logits.
std::int64_t order_floats(const LogprobsArgs& args) {
  return args.top_tokens.defined() ? arena_floats(args.logits.dim(1)) : 0;
}

std::size_t logprobs_workspace(const LogprobsArgs& args, const Stream& stream) {
  return worker_bytes(order_floats(args), row_stream(args, stream));
}

void write_row(const LogprobsArgs& args, std::int64_t n, std::int32_t* order) {
  const std::span logits(static_cast<const float*>(args.logits.row(n)), static_cast<std::size_t>(args.logits.dim(1)));
  const bool with_top = args.top_tokens.defined();
  const std::int64_t count = with_top ? args.top_tokens.dim(1) : 0;
  auto* top_tokens = with_top ? static_cast<std::int32_t*>(args.top_tokens.row(n)) : nullptr;
  auto* top_logprobs = with_top ? static_cast<float*>(args.top_logprobs.row(n)) : nullptr;
  auto* logprob = static_cast<float*>(args.logprob.data);
  const std::int32_t token = args.tokens.defined() ? static_cast<const std::int32_t*>(args.tokens.data)[n] : 0;
  const bool absent = token < 0;
  if (absent || !has_probabilities(logits)) {
    const float value = absent ? 0.0F : std::numeric_limits<float>::quiet_NaN();
    if (logprob != nullptr) logprob[n] = value;
    std::fill_n(top_tokens, count, -1);
    std::fill_n(top_logprobs, count, value);
    return;
  }
  const double all = log_normalizer(logits);
  const auto value = [&](std::int32_t of) { return static_cast<float>(logits[static_cast<std::size_t>(of)] - all); };
  if (logprob != nullptr) logprob[n] = value(token);
  if (!with_top) return;
  sort_likeliest(logits, static_cast<std::size_t>(count), std::span(order, logits.size()));
  std::copy_n(order, count, top_tokens);
  std::transform(order, order + count, top_logprobs, value);
}

void run_logprobs(const LogprobsArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t vocabulary = args.logits.dim(1);
  const double task_ns = static_cast<double>(vocabulary) * (tuning::kSelectNs + tuning::kExponentialNs);
  parallel_for(row_stream(args, stream), args.logits.dim(0), task_ns, [&](std::int64_t n, int worker) {
    std::int32_t* order = nullptr;
    if (args.top_tokens.defined()) {
      order = worker_arena(workspace, order_floats(args), worker).take<std::int32_t>(vocabulary);
    }
    write_row(args, n, order);
  });
}

constexpr Kernel<LogprobsArgs> kLogprobs[] = {
    {"rows", always_supported<LogprobsArgs>, logprobs_workspace, run_logprobs}};

}  // namespace

KernelList<LogprobsArgs> logprobs_kernels() { return kLogprobs; }

}  // namespace thalweg::cpu
