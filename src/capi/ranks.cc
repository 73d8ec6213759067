// Ranks of the C ABI.

#include "thalweg/ranks.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "capi/convert.h"
#include "capi/copy_out.h"
#include "capi/errors.h"
#include "capi/model_handle.h"
#include "capi/ranks_handle.h"

using namespace thalweg::capi;

static_assert(THALWEG_RANKS_TCP == static_cast<int>(thalweg::RankTransport::kTcp));
static_assert(THALWEG_RANKS_MPI == static_cast<int>(thalweg::RankTransport::kMpi));
static_assert(THALWEG_SPLIT_TENSOR == static_cast<int>(thalweg::RankSplit::kTensor));
static_assert(THALWEG_SPLIT_SEQUENCE == static_cast<int>(thalweg::RankSplit::kSequence));

namespace thalweg::capi {

THALWEG_NAME_OF(rank_options);
THALWEG_NAME_OF(rank_memory);

static thalweg_rank_options rank_options_of(const RankOptions& from, const char* function) {
  thalweg_rank_options to = {.struct_size = sizeof(thalweg_rank_options),
                             .rank = from.rank,
                             .count = from.count,
                             .transport = static_cast<int32_t>(from.transport),
                             .address = {},
                             .port = from.port,
                             .timeout_seconds = from.timeout_seconds,
                             .on_this_host = from.on_this_host,
                             .local_rank = from.local_rank};
  if (from.address.size() >= sizeof to.address) {
    throw Error(function, "address", "less than " + std::to_string(sizeof to.address) + " bytes",
                std::to_string(from.address.size()));
  }
  std::copy(from.address.begin(), from.address.end(), to.address);
  return to;
}

static RankOptions rank_options_of(const thalweg_rank_options& from, const char* function) {
  const auto* end = static_cast<const char*>(std::memchr(from.address, 0, sizeof from.address));
  if (end == nullptr) throw Error(function, "address", "text that is ended with a zero", "text without one");
  RankOptions to;
  to.rank = from.rank;
  to.count = from.count;
  to.transport = enum_of<RankTransport>(from.transport, function, "transport");
  to.address.assign(from.address, end);
  to.port = from.port;
  to.timeout_seconds = from.timeout_seconds;
  to.on_this_host = from.on_this_host;
  to.local_rank = from.local_rank;
  return to;
}

static thalweg_rank_memory rank_memory_of(const RankMemory& from) {
  return {.struct_size = sizeof(thalweg_rank_memory),
          .weight_bytes = from.weight_bytes,
          .copied_bytes = from.copied_bytes,
          .state_bytes = from.state_bytes,
          .cache_token_bytes = from.cache_token_bytes,
          .key_heads = from.key_heads,
          .query_heads = from.query_heads,
          .kv_heads = from.kv_heads,
          .experts = from.experts};
}

}  // namespace thalweg::capi

void thalweg_rank_options_init_sized(thalweg_rank_options* options, size_t size) {
  init_sized(rank_options_of(thalweg::RankOptions(), "rank_options"), options, size);
}
void thalweg_rank_memory_init_sized(thalweg_rank_memory* memory, size_t size) {
  init_sized(thalweg_rank_memory{}, memory, size);
}

thalweg_status thalweg_ranks_from_environment(thalweg_rank_options* options) {
  return guarded([&] {
    const char* function = "ranks_from_environment";
    require_pointer(options, function, "options");
    write_sized(rank_options_of(thalweg::ranks_from_environment(), function), options, function, "options");
  });
}

thalweg_status thalweg_ranks_connect(const thalweg_rank_options* options, thalweg_ranks** ranks) {
  return guarded([&] {
    const char* function = "ranks_connect";
    require_pointer(ranks, function, "ranks");
    const thalweg_rank_options given =
        read_sized(options, rank_options_of(thalweg::RankOptions(), function), function, "options");
    auto handle = std::make_unique<thalweg_ranks>();
    handle->connected = thalweg::Ranks::connect(rank_options_of(given, function));
    *ranks = handle.release();
  });
}

void thalweg_ranks_free(thalweg_ranks* ranks) { delete ranks; }
int32_t thalweg_ranks_rank(const thalweg_ranks* ranks) { return ranks->connected->rank(); }
int32_t thalweg_ranks_count(const thalweg_ranks* ranks) { return ranks->connected->count(); }
int32_t thalweg_ranks_local_rank(const thalweg_ranks* ranks) { return ranks->connected->local_rank(); }

thalweg_status thalweg_ranks_failure(const thalweg_ranks* ranks, char* text, size_t capacity, size_t* count) {
  return guarded([&] {
    require_pointer(ranks, "ranks_failure", "ranks");
    copy_out(ranks->connected->failure(), text, capacity, count, "ranks_failure");
  });
}

thalweg_status thalweg_model_follow(thalweg_model* model) {
  return guarded([&] { own_model(model, "model_follow").follow(); });
}

thalweg_status thalweg_rank_memory_of(const char* path, int32_t count, int32_t split, thalweg_rank_memory* memories) {
  return guarded([&] {
    const char* function = "rank_memory_of";
    require_pointer(path, function, "path");
    const auto wanted = enum_of<thalweg::RankSplit>(split, function, "split");
    read_sized(memories, thalweg_rank_memory{}, function, "memories");
    const std::vector<thalweg::RankMemory> all = thalweg::rank_memory(path, count, wanted);
    // The caller's structs are as far apart as the caller's version of them is long.
    const auto at = [&](std::size_t rank) {
      return reinterpret_cast<thalweg_rank_memory*>(reinterpret_cast<char*>(memories) + rank * memories->struct_size);
    };
    for (std::size_t r = 0; r < all.size(); ++r) read_sized(at(r), thalweg_rank_memory{}, function, "memories");
    for (std::size_t r = 0; r < all.size(); ++r) write_sized(rank_memory_of(all[r]), at(r), function, "memories");
  });
}
