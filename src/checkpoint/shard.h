#pragma once

// What one rank of several holds of a model (docs/scaling.md): heads, rows and columns of projections, experts, rows of
// the vocabulary's head.

#include <cstdint>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/weights.h"
#include "io/tensor_source.h"

namespace thalweg::checkpoint {

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
};

struct ShardPlan {
  int rank = 0;
  int ranks = 1;
  Range key_heads;    // of the gated delta rule, with their value heads
  Range query_heads;  // of attention
  Range kv_heads;     // that these read: ranks that outnumber them hold the same ones
  Range experts;
  Range shared;      // of the shared expert's inner size; may be empty
  Range dense;       // of the dense blocks' inner size
  Range vocabulary;  // rows of the head
};

// The plans of all ranks, as even as whole heads, experts and blocks of the tensors' formats allow. `source` names the
// tensors. Throws Error for a model that cannot be cut so often, and names the tensor or the size in the way.
std::vector<ShardPlan> plan_shards(const ModelConfig& config, const Weights& weights, const io::TensorSource& source,
                                   int ranks);

// The configuration of a rank's own layers: fewer heads, smaller inner sizes; experts and vocabulary are those of all.
ModelConfig shard_config(const ModelConfig& config, const ShardPlan& plan);

// The rank's share of the weights: views of rows where they lie together, else copies, counted in `owned`. Head rows
// are plan.vocabulary; the embedding is whole, since a step reads a row for each token. Without `copies` these are
// counted and not made: the result is for looking at.
Weights shard_weights(const ModelConfig& config, const Weights& weights, const ShardPlan& plan, bool copies = true);

// Of the views and copies, each once.
std::uint64_t shard_bytes(const ModelConfig& config, const Weights& shard);

// Asks the system to read what the views name, ahead of its use.
void prefetch_shard(const Weights& shard);

}  // namespace thalweg::checkpoint
