#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>

#include "checkpoint/shard.h"

namespace thalweg::checkpoint {
namespace {

using Ranges = std::vector<Range>;

#ifdef MADV_COLD
constexpr int kNoLongerUsed = MADV_COLD;
#else
constexpr int kNoLongerUsed = MADV_NORMAL;
#endif

// Calls `advise` with the whole pages that a contiguous run of bytes covers.
void advise_pages(const void* data, std::size_t bytes, int advice) {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const std::uintptr_t skipped = (page - reinterpret_cast<std::uintptr_t>(data) % page) % page;
  if (bytes < skipped + page) return;
  auto* first = const_cast<char*>(static_cast<const char*>(data)) + skipped;
  madvise(first, (bytes - skipped) / page * page, advice);
}

std::size_t size_in_bytes(const ConstTensor& tensor) {
  return static_cast<std::size_t>(bytes_of(tensor.dtype, tensor.size()));
}

class Sharder {
 public:
  Sharder(const ModelConfig& config, const Weights& weights, const ShardPlan& plan, bool copies)
      : config_(config), plan_(plan), copies_(copies) {
    const std::int64_t heads = config.key_heads;
    const std::int64_t ratio = config.value_heads / heads;
    const Range& mine = plan.key_heads;
    if (config.head_map == HeadMap::kGrouped) {
      value_heads_ = {{mine.begin * ratio, mine.end * ratio}};
    } else {
      for (std::int64_t tile = 0; tile < ratio; ++tile) {
        value_heads_.push_back({tile * heads + mine.begin, tile * heads + mine.end});
      }
    }
    shard_.embedding = weights.embedding;
    shard_.norm = weights.norm;
    shard_.head = rows(weights.head, {plan.vocabulary});
    shard_.rope_frequencies = weights.rope_frequencies;
    shard_.used = weights.used;
    shard_.layers.resize(weights.layers.size());
    for (std::size_t i = 0; i < weights.layers.size(); ++i) shard_layer(i, weights.layers[i], shard_.layers[i]);
  }

  Weights take() { return std::move(shard_); }

 private:
  static Ranges scaled(const Ranges& ranges, std::int64_t factor, std::int64_t offset = 0) {
    Ranges result;
    for (const Range& range : ranges) result.push_back({offset + range.begin * factor, offset + range.end * factor});
    return result;
  }
  static Ranges joined(Ranges first, const Ranges& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
  }

  // Null without copies.
  std::byte* allocate(std::size_t bytes) {
    if (copies_) return static_cast<std::byte*>(shard_.owned.allocate(bytes));
    shard_.owned.count(bytes);
    return nullptr;
  }
  // After a copy: the file's pages are the first to go when memory is short.
  static void forget(const ConstTensor& tensor) { advise_pages(tensor.data, size_in_bytes(tensor), kNoLongerUsed); }

  // Indices of the outermost dimension: a view where they lie together.
  ConstTensor rows(const ConstTensor& tensor, const Ranges& ranges) {
    if (!tensor.defined()) return {};
    Ranges merged;
    for (const Range& range : ranges) {
      if (!merged.empty() && merged.back().end == range.begin) {
        merged.back().end = range.end;
      } else {
        merged.push_back(range);
      }
    }
    if (merged.size() == 1) return narrow(tensor, 0, merged[0].begin, merged[0].count());
    std::int64_t count = 0;
    for (const Range& range : merged) count += range.count();
    ConstTensor copy = tensor;
    copy.shape[0] = count;
    const std::size_t row_bytes = size_in_bytes(tensor) / static_cast<std::size_t>(tensor.dim(0));
    std::byte* to = allocate(row_bytes * static_cast<std::size_t>(count));
    copy.data = to;
    if (!copies_) return copy;
    for (const Range& range : merged) {
      const std::size_t bytes = row_bytes * static_cast<std::size_t>(range.count());
      std::memcpy(to, tensor.row(range.begin), bytes);
      to += bytes;
    }
    forget(tensor);
    return copy;
  }

  // Columns of a matrix: copied, since a view of them would keep all its pages.
  ConstTensor columns(const ConstTensor& tensor, const Ranges& ranges) {
    if (!tensor.defined()) return {};
    std::int64_t count = 0;
    for (const Range& range : ranges) count += range.count();
    if (count == tensor.dim(1)) return tensor;
    const auto row_bytes = static_cast<std::size_t>(bytes_of(tensor.dtype, count));
    std::byte* to = allocate(row_bytes * static_cast<std::size_t>(tensor.dim(0)));
    const ConstTensor copy(to, tensor.dtype, {tensor.dim(0), count}, tensor.device);
    if (!copies_) return copy;
    for (std::int64_t row = 0; row < tensor.dim(0); ++row) {
      const auto* from = static_cast<const std::byte*>(tensor.row(row));
      for (const Range& range : ranges) {
        const auto bytes = static_cast<std::size_t>(bytes_of(tensor.dtype, range.count()));
        std::memcpy(to, from + bytes_of(tensor.dtype, range.begin), bytes);
        to += bytes;
      }
    }
    forget(tensor);
    return copy;
  }

  void shard_layer(std::size_t i, const LayerWeights& from, LayerWeights& to) {
    to.input_norm = from.input_norm;
    to.post_norm = from.post_norm;
    if (config_.layers[i] == LayerKind::kGatedDelta) {
      shard_gated_delta(from.gated_delta, to.gated_delta);
    } else {
      shard_attention(from.attention, to.attention);
    }
    if (config_.sparse[i]) {
      shard_experts(from.moe, to.moe);
    } else {
      to.dense.gate = rows(from.dense.gate, {plan_.dense});
      to.dense.up = rows(from.dense.up, {plan_.dense});
      to.dense.down = columns(from.dense.down, {plan_.dense});
    }
  }

  void shard_gated_delta(const GatedDeltaWeights& from, GatedDeltaWeights& to) {
    const std::int64_t keys = config_.key_channels();
    const Ranges key_heads = {plan_.key_heads};
    const Ranges values = scaled(value_heads_, config_.value_dim);
    // q | k | v
    const Ranges channels = joined(joined(scaled(key_heads, config_.key_dim), scaled(key_heads, config_.key_dim, keys)),
                                   scaled(value_heads_, config_.value_dim, 2 * keys));
    to.qkv = rows(from.qkv, channels);
    to.z = rows(from.z, values);
    const std::int64_t of_key_head = (config_.conv_channels() + config_.value_channels()) / config_.key_heads;
    to.qkvz = rows(from.qkvz, scaled(key_heads, of_key_head));
    to.b = rows(from.b, value_heads_);
    to.a = rows(from.a, value_heads_);
    to.ba = rows(from.ba, joined(value_heads_, scaled(value_heads_, 1, config_.value_heads)));
    to.conv = rows(from.conv, channels);
    to.a_log = rows(from.a_log, value_heads_);
    to.dt_bias = rows(from.dt_bias, value_heads_);
    to.norm = from.norm;
    to.out = columns(from.out, values);
  }

  void shard_attention(const AttentionWeights& from, AttentionWeights& to) {
    const std::int64_t width = config_.head_dim;
    const Ranges queries = {plan_.query_heads};
    const Ranges keys = {plan_.kv_heads};
    to.q = rows(from.q, scaled(queries, 2 * width));
    to.k = rows(from.k, scaled(keys, width));
    to.v = rows(from.v, scaled(keys, width));
    to.o = columns(from.o, scaled(queries, width));
    to.q_norm = from.q_norm;
    to.k_norm = from.k_norm;
  }

  void shard_experts(const MoeWeights& from, MoeWeights& to) {
    to.router = from.router;
    to.first_expert = plan_.experts.begin;
    to.gate = rows(from.gate, {plan_.experts});
    to.up = rows(from.up, {plan_.experts});
    to.down = rows(from.down, {plan_.experts});
    if (plan_.shared.count() == 0) return;
    to.shared_gate = rows(from.shared_gate, {plan_.shared});
    to.shared_up = rows(from.shared_up, {plan_.shared});
    to.shared_down = columns(from.shared_down, {plan_.shared});
    to.shared_router = from.shared_router;
  }

  const ModelConfig& config_;
  const ShardPlan& plan_;
  bool copies_;
  Ranges value_heads_;
  Weights shard_;
};

void for_each_tensor(const Weights& weights, const std::function<void(const ConstTensor&)>& visit) {
  for (const ConstTensor* tensor : {&weights.embedding, &weights.norm, &weights.head}) visit(*tensor);
  for (const LayerWeights& layer : weights.layers) {
    const GatedDeltaWeights& d = layer.gated_delta;
    const AttentionWeights& a = layer.attention;
    const MoeWeights& m = layer.moe;
    for (const ConstTensor* tensor : {&layer.input_norm,
                                      &layer.post_norm,
                                      &d.qkv,
                                      &d.z,
                                      &d.qkvz,
                                      &d.b,
                                      &d.a,
                                      &d.ba,
                                      &d.conv,
                                      &d.a_log,
                                      &d.dt_bias,
                                      &d.norm,
                                      &d.out,
                                      &a.q,
                                      &a.k,
                                      &a.v,
                                      &a.o,
                                      &a.q_norm,
                                      &a.k_norm,
                                      &layer.dense.gate,
                                      &layer.dense.up,
                                      &layer.dense.down,
                                      &m.router,
                                      &m.gate,
                                      &m.up,
                                      &m.down,
                                      &m.shared_gate,
                                      &m.shared_up,
                                      &m.shared_down,
                                      &m.shared_router}) {
      if (tensor->defined()) visit(*tensor);
    }
  }
}

}  // namespace

Weights shard_weights(const ModelConfig& config, const Weights& weights, const ShardPlan& plan, bool copies) {
  return Sharder(config, weights, plan, copies).take();
}

std::uint64_t shard_bytes(const ModelConfig& config, const Weights& shard) {
  std::uint64_t bytes = 0;
  for_each_tensor(shard, [&](const ConstTensor& tensor) { bytes += size_in_bytes(tensor); });
  // A tied head's rows are the embedding's.
  return config.tied_head ? bytes - size_in_bytes(shard.head) : bytes;
}

void prefetch_shard(const Weights& shard) {
  for_each_tensor(shard, [&](const ConstTensor& tensor) {
    if (tensor.data == shard.embedding.data) return;  // a row for each token
    const bool apart = tensor.rank == 3 && tensor.stride(0) != tensor.dim(1) * tensor.dim(2);
    const std::size_t bytes = apart ? static_cast<std::size_t>(bytes_of(tensor.dtype, tensor.stride(0) * tensor.dim(0)))
                                    : size_in_bytes(tensor);
    advise_pages(tensor.data, bytes, MADV_WILLNEED);
  });
}

}  // namespace thalweg::checkpoint
