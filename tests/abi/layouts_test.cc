// The layouts of the C structs, held to the checked-in table: what a program was compiled with stays readable.

#include "capi/layouts.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "capi/operations.h"
#include "capi/sized.h"
#include "core/fields.h"
#include "thalweg/thalweg.h"
#include "thalweg/thalweg_ranks.h"

namespace thalweg::capi {
namespace {

struct Field {
  std::string name;
  std::size_t offset;
  std::size_t size;
};

struct Described {
  std::size_t size;
  std::vector<Field> fields;
};

// FNV-1a over the fields that lie within the first `size` bytes.
std::uint64_t hash_of(const Described& described, std::size_t size) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  const auto add = [&hash](const std::string& text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  };
  for (const Field& field : described.fields) {
    if (field.offset + field.size > size) continue;
    add(field.name + " " + std::to_string(field.offset) + " " + std::to_string(field.size) + ";");
  }
  return hash;
}

template <class Struct>
class Describe {
 public:
  Described result{sizeof(Struct), {}};

  template <class Member>
  void add(const char* name, const Member& member) const {
    const auto* base = reinterpret_cast<const char*>(&value);
    const auto offset = static_cast<std::size_t>(reinterpret_cast<const char*>(&member) - base);
    // Members may be pointers. NOLINTNEXTLINE(bugprone-sizeof-expression)
    const_cast<Described&>(result).fields.push_back({name, offset, sizeof(Member)});
  }
  template <class Member>
  void operator()(const char* name, const Member& member) const {
    add(name, member);
  }

  Struct value{};
};

template <class Args, class Mirror>
Described describe_args() {
  Describe<Mirror> describe;
  describe.add("struct_size", describe.value.struct_size);
  Fields<Args>::each(describe, describe.value);
  return describe.result;
}

#define FIELD(field) describe.add(#field, describe.value.field);
#define DESCRIBE(name, ...)                                        \
  all[#name] = [] {                                                \
    Describe<thalweg_##name> describe;                             \
    THALWEG_EACH_FIELD(FIELD, __VA_ARGS__) return describe.result; \
  }()

// Every struct of thalweg.h and thalweg_ranks.h by its name.
std::map<std::string, Described> describe_all() {
  std::map<std::string, Described> all;
  DESCRIBE(device, type, index);
  DESCRIBE(thread_pool, run, user);
  DESCRIBE(stream, struct_size, device, threads, rows, native, pool);
  DESCRIBE(tensor, data, dtype, rank, device, shape, strides, alignment, reserved);
  DESCRIBE(gate_inputs, a, b, a_log, dt_bias);
  DESCRIBE(model_options, struct_size, threads, context, sequences, prefill_chunk, exact, kv_dtype, state_dtype,
           device_type, device_index, prefetch, progress, user, pool, draft, draft_max, ranks, rank_split,
           batch_invariant);
  DESCRIBE(rank_options, struct_size, rank, count, transport, address, port, timeout_seconds, on_this_host, local_rank);
  DESCRIBE(rank_memory, struct_size, weight_bytes, copied_bytes, state_bytes, cache_token_bytes, key_heads, query_heads,
           kv_heads, experts);
  DESCRIBE(sampling, struct_size, temperature, top_k, top_p, min_p, repeat_penalty, repeat_last, seed);
  DESCRIBE(chat_message, role, content);
  DESCRIBE(generated, struct_size, tokens, reason, prompt_tokens, prefill_seconds, steps, decode_seconds);
  DESCRIBE(engine_options, struct_size, queue, cache_bytes, cache_dir, cache_dir_bytes, prompt_share, cache_answers,
           cache_device_bytes);
  DESCRIBE(request, struct_size, prompt, prompt_count, boundaries, boundary_count, sampling, max_tokens, stop,
           stop_count, logprobs, ignore_end);
  DESCRIBE(output, struct_size, text, text_size, tokens, token_count, logprobs, likeliest_tokens, likeliest_logprobs,
           finish, error, prompt_tokens, cached_tokens, generated_tokens, queue_seconds, prompt_seconds,
           generation_seconds);
  DESCRIBE(engine_counts, struct_size, waiting, running, requests, refused, finished, cancelled, failed, prompt_tokens,
           prompt_tokens_cached, prompt_tokens_computed, generated_tokens, cache_bytes, cache_checkpoints,
           cache_dir_bytes, cache_dir_checkpoints, cache_device_bytes);
#define DESCRIBE_OPERATION(name, Args) all[#name "_args"] = describe_args<Args, thalweg_##name##_args>();
  THALWEG_C_OPERATIONS(DESCRIBE_OPERATION)
  return all;
}

// The last row of each struct.
std::map<std::string, Layout> latest_rows() {
  std::map<std::string, Layout> latest;
  for (const Layout& layout : kLayouts) latest.insert_or_assign(std::string(layout.name), layout);
  return latest;
}

TEST(Layouts, ListsHoldAllFields) {
  for (const auto& [name, described] : describe_all()) {
    std::size_t end = 0;
    for (const Field& field : described.fields) {
      EXPECT_LT(field.offset - end, 8U) << name << ": something stands before " << field.name;
      end = field.offset + field.size;
    }
    EXPECT_LT(described.size - end, 8U) << name << ": something stands behind the last field";
  }
}

TEST(Layouts, AreThoseOfTheTable) {
  const std::map<std::string, Layout> latest = latest_rows();
  const auto all = describe_all();
  EXPECT_EQ(latest.size(), all.size());
  for (const auto& [name, described] : all) {
    char row[160];
    std::snprintf(row, sizeof row, "    {\"%s\", %d, %zu, 0x%016llX},\n", name.c_str(), THALWEG_ABI_VERSION,
                  described.size, static_cast<unsigned long long>(hash_of(described, described.size)));
    const auto found = latest.find(name);
    const bool listed = found != latest.end() && found->second.size == described.size &&
                        found->second.hash == hash_of(described, described.size);
    EXPECT_TRUE(listed) << "A struct has another layout than src/capi/layouts.h says. If fields were appended, raise "
                           "THALWEG_ABI_VERSION and add this row below the struct's others; anything else breaks "
                           "programs that were compiled before.\n"
                        << row;
    if (!listed) std::fputs(row, stdout);
  }
}

// What has been published stays: the fields of each older row are still the first ones of the struct.
TEST(Layouts, OlderOnesAreBeginningsOfTheLatest) {
  const auto all = describe_all();
  for (const Layout& layout : kLayouts) {
    EXPECT_LE(layout.abi, THALWEG_ABI_VERSION) << layout.name;
    const auto found = all.find(std::string(layout.name));
    ASSERT_NE(found, all.end()) << layout.name;
    EXPECT_EQ(hash_of(found->second, layout.size), layout.hash) << layout.name << " of " << layout.size << " bytes";
  }
}

TEST(Layouts, TheHashSeesEveryKindOfChange) {
  const Described before{16, {{"a", 0, 8}, {"b", 8, 4}, {"c", 12, 4}}};
  const Described renamed{16, {{"a", 0, 8}, {"d", 8, 4}, {"c", 12, 4}}};
  const Described swapped{16, {{"a", 0, 8}, {"c", 8, 4}, {"b", 12, 4}}};
  const Described wider{24, {{"a", 0, 8}, {"b", 8, 4}, {"c", 16, 8}}};
  const Described grown{24, {{"a", 0, 8}, {"b", 8, 4}, {"c", 12, 4}, {"d", 16, 8}}};
  EXPECT_NE(hash_of(renamed, 16), hash_of(before, 16));
  EXPECT_NE(hash_of(swapped, 16), hash_of(before, 16));
  EXPECT_NE(hash_of(wider, 24), hash_of(before, 16));
  EXPECT_NE(hash_of(grown, 24), hash_of(before, 16));
  EXPECT_EQ(hash_of(grown, 16), hash_of(before, 16));
}

}  // namespace
}  // namespace thalweg::capi

// A struct that grew once: callers with the first version have neither `later` nor `last`.
struct thalweg_grown {
  std::size_t struct_size;
  std::int64_t first;
  std::int64_t later;
};

namespace thalweg::capi {
namespace {

constexpr Layout kGrown[] = {{"grown", 5, 16, 0}, {"grown", 6, 24, 0}};
constexpr thalweg_grown kDefaults{24, 1, 2};

thalweg_grown read(const thalweg_grown& from) { return read_sized(&from, kDefaults, kGrown, "grown", "op", "args"); }

TEST(SizedStructs, ThoseOfOlderCallersGetDefaults) {
  thalweg_grown old{16, 7, -99};  // what stands behind the caller's struct is not read
  EXPECT_EQ(read(old).first, 7);
  EXPECT_EQ(read(old).later, 2);
  EXPECT_EQ(read(old).struct_size, 24U);
  const thalweg_grown current{24, 7, 8};
  EXPECT_EQ(read(current).later, 8);
}

TEST(SizedStructs, ResultsFillWhatTheCallerHas) {
  thalweg_grown old{16, 0, -99};
  write_sized(thalweg_grown{24, 5, 6}, &old, kGrown, "grown", "op", "result");
  EXPECT_EQ(old.struct_size, 16U);
  EXPECT_EQ(old.first, 5);
  EXPECT_EQ(old.later, -99);
}

TEST(SizedStructs, OtherSizesAreRefused) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{8}, std::size_t{20}, std::size_t{32}, ~std::size_t{0}}) {
    const thalweg_grown wrong{size, 7, 8};
    try {
      read(wrong);
      ADD_FAILURE() << size;
    } catch (const Error& error) {
      EXPECT_EQ(error.argument(), "args.struct_size");
      EXPECT_NE(std::string(error.what()).find("got " + std::to_string(size)), std::string::npos) << error.what();
    }
  }
}

TEST(SizedStructs, InitFillsWhatTheCallerHas) {
  thalweg_grown old{0, 0, -99};
  init_sized(kDefaults, &old, 16);
  EXPECT_EQ(old.struct_size, 16U);
  EXPECT_EQ(old.first, 1);
  EXPECT_EQ(old.later, -99);
  struct {
    thalweg_grown known;
    std::int64_t unknown;
  } newer{{0, 0, 0}, -99};
  init_sized(kDefaults, &newer.known, sizeof newer);
  EXPECT_EQ(newer.known.struct_size, sizeof newer);
  EXPECT_EQ(newer.known.later, 2);
  EXPECT_EQ(newer.unknown, 0);
  init_sized(kDefaults, static_cast<thalweg_grown*>(nullptr), 24);
}

}  // namespace
}  // namespace thalweg::capi
