#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "checkpoint/shard.h"
#include "thalweg/error.h"

namespace thalweg::checkpoint {
namespace {

// A boundary of `total` things into `parts`, at multiples of `unit`.
std::int64_t boundary(std::int64_t total, std::int64_t unit, int parts, int part) {
  const std::int64_t units = (total + unit - 1) / unit;
  return std::min(total, units * part / parts * unit);
}

Range range_of(std::int64_t total, std::int64_t unit, int parts, int part) {
  return {boundary(total, unit, parts, part), boundary(total, unit, parts, part + 1)};
}

std::int64_t block_size(const ConstTensor& tensor) { return dtype_info(tensor.dtype).block_size; }

// The least number of things of `columns` columns each that are whole blocks.
std::int64_t unit_of(const ConstTensor& tensor, std::int64_t columns) {
  return block_size(tensor) / std::gcd(block_size(tensor), columns);
}

class Planner {
 public:
  Planner(const ModelConfig& config, const Weights& weights, const io::TensorSource& source, int ranks)
      : config_(config), weights_(weights), source_(source), ranks_(ranks) {}

  ShardPlan plan(int rank) const {
    ShardPlan plan;
    plan.rank = rank;
    plan.ranks = ranks_;
    plan_gated_delta(plan);
    plan_attention(plan);
    if (config_.experts > 0) {
      require(config_.experts >= ranks_, "experts", config_.experts);
      plan.experts = range_of(config_.experts, 1, ranks_, rank);
    }
    plan_inner(plan);
    require(config_.vocabulary >= ranks_, "the vocabulary", config_.vocabulary);
    plan.vocabulary = range_of(config_.vocabulary, 1, ranks_, rank);
    return plan;
  }

 private:
  void require(bool condition, std::string_view what, std::int64_t have) const {
    if (condition) return;
    throw Error(config_.path, what, "at least one for each of " + std::to_string(ranks_) + " ranks",
                std::to_string(have));
  }

  // Refuses columns that cannot be cut at whole blocks.
  [[noreturn]] void refuse(const ConstTensor& tensor, const std::string& given) const {
    std::string name = "a tensor";
    for (const auto& [candidate, use] : weights_.used) {
      if (source_.tensor(candidate).data == tensor.data) name = candidate;
    }
    throw Error(config_.path, name,
                "columns that " + std::to_string(ranks_) + " ranks can cut at multiples of " +
                    std::to_string(block_size(tensor)) + ", a block of " + std::string(dtype_name(tensor.dtype)),
                given);
  }

  // The largest unit of all layers' tensors, in things of `columns` columns; formats' blocks are powers of two, so that
  // it is a multiple of the others.
  struct Unit {
    std::int64_t things = 1;
    const ConstTensor* tensor = nullptr;
  };
  template <class TensorOf>
  Unit largest_unit(std::int64_t columns, const TensorOf& tensor_of) const {
    Unit largest;
    for (std::size_t i = 0; i < weights_.layers.size(); ++i) {
      const ConstTensor* tensor = tensor_of(i);
      if (tensor == nullptr || !tensor->defined()) continue;
      const std::int64_t unit = unit_of(*tensor, columns);
      if (largest.tensor == nullptr || unit > largest.things) largest = {unit, tensor};
    }
    return largest;
  }

  void plan_gated_delta(ShardPlan& plan) const {
    const std::int64_t heads = config_.key_heads;
    const std::int64_t ratio = config_.value_heads / config_.key_heads;
    const bool grouped = config_.head_map == HeadMap::kGrouped;
    const auto out_of = [&](std::size_t i) {
      return config_.layers[i] == LayerKind::kGatedDelta ? &weights_.layers[i].gated_delta.out : nullptr;
    };
    // Grouped, the value heads of a key head lie together; tiled, one lies in each of `ratio` tiles of all key heads.
    const std::int64_t columns = grouped ? ratio * config_.value_dim : config_.value_dim;
    const Unit unit = largest_unit(columns, out_of);
    if (unit.tensor == nullptr) {
      plan.key_heads = {0, heads};
      return;
    }
    require(heads >= ranks_, "key heads of the gated delta rule", heads);
    const bool tiles_are_whole = grouped || ratio == 1 || heads * config_.value_dim % block_size(*unit.tensor) == 0;
    if ((heads + unit.things - 1) / unit.things < ranks_ || (ranks_ > 1 && !tiles_are_whole)) {
      refuse(*unit.tensor, std::to_string(heads) + " key heads with " + std::to_string(columns) + " columns each");
    }
    plan.key_heads = range_of(heads, unit.things, ranks_, plan.rank);
  }

  void plan_attention(ShardPlan& plan) const {
    const std::int64_t group = config_.heads / config_.kv_heads;
    const auto o_of = [&](std::size_t i) {
      return config_.layers[i] == LayerKind::kAttention ? &weights_.layers[i].attention.o : nullptr;
    };
    const Unit of_heads = largest_unit(config_.head_dim, o_of);
    if (of_heads.tensor == nullptr) {
      plan.query_heads = {0, config_.heads};
      plan.kv_heads = {0, config_.kv_heads};
      return;
    }
    require(config_.heads >= ranks_, "query heads of attention", config_.heads);
    if (ranks_ <= config_.kv_heads) {
      const Unit unit = largest_unit(group * config_.head_dim, o_of);
      if ((config_.kv_heads + unit.things - 1) / unit.things < ranks_) {
        refuse(*unit.tensor, std::to_string(config_.kv_heads) + " groups of " +
                                 std::to_string(group * config_.head_dim) + " columns");
      }
      plan.kv_heads = range_of(config_.kv_heads, unit.things, ranks_, plan.rank);
      plan.query_heads = {plan.kv_heads.begin * group, plan.kv_heads.end * group};
      return;
    }
    // Several ranks read one key head, each with some of its query heads.
    const auto first_rank = [&](std::int64_t kv) { return (kv * ranks_ + config_.kv_heads - 1) / config_.kv_heads; };
    const std::int64_t kv = std::int64_t{plan.rank} * config_.kv_heads / ranks_;
    const auto sharers = static_cast<int>(first_rank(kv + 1) - first_rank(kv));
    const auto mine = static_cast<int>(plan.rank - first_rank(kv));
    const bool whole = group * config_.head_dim % block_size(*of_heads.tensor) == 0;
    const Range range = range_of(group, of_heads.things, sharers, mine);
    if (!whole || (group + of_heads.things - 1) / of_heads.things < sharers) {
      refuse(*of_heads.tensor, std::to_string(group) + " query heads of " + std::to_string(config_.head_dim) +
                                   " columns for each of " + std::to_string(config_.kv_heads) + " key heads");
    }
    plan.kv_heads = {kv, kv + 1};
    plan.query_heads = {kv * group + range.begin, kv * group + range.end};
  }

  void plan_inner(ShardPlan& plan) const {
    const Unit shared = largest_unit(
        1, [&](std::size_t i) { return config_.sparse[i] ? &weights_.layers[i].moe.shared_down : nullptr; });
    plan.shared = range_of(config_.shared_hidden, shared.things, ranks_, plan.rank);
    const Unit dense =
        largest_unit(1, [&](std::size_t i) { return config_.sparse[i] ? nullptr : &weights_.layers[i].dense.down; });
    if (dense.tensor == nullptr) return;
    if ((config_.dense_hidden + dense.things - 1) / dense.things < ranks_) {
      refuse(*dense.tensor, std::to_string(config_.dense_hidden) + " columns");
    }
    plan.dense = range_of(config_.dense_hidden, dense.things, ranks_, plan.rank);
  }

  const ModelConfig& config_;
  const Weights& weights_;
  const io::TensorSource& source_;
  int ranks_;
};

}  // namespace

std::vector<ShardPlan> plan_shards(const ModelConfig& config, const Weights& weights, const io::TensorSource& source,
                                   int ranks) {
  const Planner planner(config, weights, source, ranks);
  std::vector<ShardPlan> plans;
  for (int rank = 0; rank < ranks; ++rank) plans.push_back(planner.plan(rank));
  return plans;
}

ModelConfig shard_config(const ModelConfig& config, const ShardPlan& plan) {
  ModelConfig shard = config;
  const int ratio = config.value_heads / config.key_heads;
  shard.key_heads = static_cast<int>(plan.key_heads.count());
  shard.value_heads = shard.key_heads * ratio;
  shard.heads = static_cast<int>(plan.query_heads.count());
  shard.kv_heads = static_cast<int>(plan.kv_heads.count());
  shard.shared_hidden = plan.shared.count();
  shard.dense_hidden = plan.dense.count();
  return shard;
}

}  // namespace thalweg::checkpoint
