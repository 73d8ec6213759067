// A model that several ranks run together: how they join, and what those above 0 do.

#include <algorithm>
#include <array>
#include <filesystem>
#include <vector>

#include "decode/checksum.h"
#include "decode/model_impl.h"
#include "decode/session.h"
#include "thalweg/error.h"
#include "thalweg/ranks.h"
#include "thalweg/version.h"

namespace thalweg {
namespace {

std::uint64_t checksum_of_build() {
  decode::Checksum sum;
  sum.add(version());
  sum.add(__VERSION__);
  sum.add_value(sizeof(void*));
  return sum.value();
}

std::uint64_t checksum_of_options(const Model::Impl& model) {
  const ModelOptions& options = model.options;
  decode::Checksum sum;
  sum.add_value(model.context);
  sum.add_value(options.sequences);
  sum.add_value(options.prefill_chunk);
  sum.add_value(options.exact ? 1 : 0);
  sum.add_value(options.batch_invariant ? 1 : 0);
  sum.add_value(options.kv_dtype.value_or(options.exact ? DType::kF32 : DType::kF16));
  sum.add_value(options.state_dtype);
  return sum.value();
}

class ModelFollower : public decode::Follower {
 public:
  explicit ModelFollower(Model::Impl& model) : model_(model) {}

  void run(std::span<const decode::RankedChunk> chunks, bool each_logits) override {
    model_.decoder->follow(chunks, each_logits, *model_.pool);
    model_.source().require_intact();
  }
  void start_loop(std::span<const decode::RankedStart> starts, bool ignore_end) override {
    std::vector<decode::LoopInput> inputs;
    for (const decode::RankedStart& start : starts) {
      model_.pool->set_length(start.slot, start.seen);
      inputs.push_back({start.slot, start.tokens, start.next, start.sampling});
    }
    model_.loop->start(inputs, ignore_end);
  }
  void launch_loop() override {
    if (model_.loop->is_full()) model_.loop->read();
    model_.loop->launch();
  }
  void clear(int slot) override { model_.pool->clear(slot); }
  void read(const decode::SlotPart& part, std::byte* to) override {
    decode::StatePool& pool = *model_.pool;
    pool.reserve(part.first + part.count);
    if (part.states) {
      pool.read_states(part.slot, to);
      to += pool.fixed_bytes();
    }
    if (part.count > 0) pool.read_cache(part.slot, part.first, part.count, to);
  }
  void write(const decode::SlotPart& part, const std::byte* from) override {
    decode::StatePool& pool = *model_.pool;
    pool.reserve(part.first + part.count);
    if (part.states) {
      pool.write_states(part.slot, from);
      from += pool.fixed_bytes();
    }
    if (part.count == 0) return;
    pool.write_cache(part.slot, part.first, part.count, from);
    // What a later reserve() must keep.
    pool.set_length(part.slot, part.first + part.count);
  }

 private:
  Model::Impl& model_;
};

}  // namespace

void Model::Impl::join_ranks() {
  if (options.ranks == nullptr || options.ranks->count() == 1) return;
  group = std::make_unique<decode::RankGroup>(options.ranks);
  choose_rank_device();
  const decode::RankGroup::Fact facts[] = {
      {"model file", decode::fingerprint(config, weights, source())},
      {"build of the library", checksum_of_build()},
      {"what ranks share (rank_split)", static_cast<std::uint64_t>(options.rank_split)},
      {"kind of device", static_cast<std::uint64_t>(options.device->type)},
      {"options (context, sequences, precision, types)", checksum_of_options(*this)}};
  group->compare(facts);
  if (options.rank_split == RankSplit::kSequence) {
    group->set_replicas();
    return;
  }
  const auto rank = static_cast<std::size_t>(group->rank());
  const checkpoint::ShardPlan plan = checkpoint::plan_shards(config, weights, source(), group->count())[rank];
  shard = std::make_unique<Shard>();
  shard->config = checkpoint::shard_config(config, plan);
  shard->weights = checkpoint::shard_weights(config, weights, plan);
}

void Model::Impl::connect_rank_devices() {
  if (group == nullptr || runtime->on_host()) return;
  // Kernels are chosen by the kind of GPU, and all ranks choose the same tokens.
  decode::Checksum kind;
  kind.add(runtime->device_kind());
  const decode::RankGroup::Fact fact{"kind of GPU", kind.value()};
  group->compare(std::span(&fact, 1));
  device_ranks = std::make_unique<decode::RankedDevice>(*runtime, *runtime->ranks(), group->host());
  group->set_device(device_ranks.get());
}

Model::Impl::~Impl() {
  if (group != nullptr) group->end();
}

void Model::Impl::begin_ranks() {
  if (group == nullptr) return;
  group->set_sizes(pool->fixed_bytes(), pool->token_bytes());
  group->begin();
  if (group->leads()) pool->set_group(group.get());
}

void Model::follow() {
  if (impl_->group == nullptr || impl_->group->leads()) {
    throw Error("follow", "rank", "one above 0", impl_->group == nullptr ? "the only one" : "rank 0, which leads");
  }
  ModelFollower follower(*impl_);
  impl_->group->follow(follower);
}

std::vector<RankMemory> rank_memory(const std::string& path, int count, RankSplit split) {
  if (count < 1 || count > 1024) throw Error("rank_memory", "count", "1 to 1024", std::to_string(count));
  Model::Impl model;
  model.open(path);
  decode::Runtime runtime(kCpu, 1, {}, false);
  std::vector<RankMemory> all;
  for (const checkpoint::ShardPlan& plan :
       checkpoint::plan_shards(model.config, model.weights, model.source(), split == RankSplit::kTensor ? count : 1)) {
    const checkpoint::Weights weights = checkpoint::shard_weights(model.config, model.weights, plan, false);
    const checkpoint::ModelConfig config = checkpoint::shard_config(model.config, plan);
    const decode::StatePool pool(config, runtime, 1, 1, DType::kF16, DType::kF32, 0, false);
    RankMemory memory;
    memory.weight_bytes = checkpoint::shard_bytes(model.config, weights);
    memory.copied_bytes = weights.owned.bytes();
    memory.state_bytes = pool.fixed_bytes();
    memory.cache_token_bytes = pool.token_bytes();
    memory.key_heads = config.key_heads;
    memory.query_heads = config.heads;
    memory.kv_heads = config.kv_heads;
    memory.experts = static_cast<int>(plan.experts.count());
    all.push_back(memory);
  }
  all.resize(static_cast<std::size_t>(count), all.front());  // where each has all
  return all;
}

}  // namespace thalweg
