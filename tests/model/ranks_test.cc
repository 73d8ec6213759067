// Models that several ranks run together, beside the models' mathematics in float64 and beside one rank.

#include "model/ranks.h"

#include <atomic>
#include <cmath>
#include <memory>

#include "checkpoint/config.h"
#include "comm/communicator.h"
#include "decode/sequence_share.h"
#include "io/gguf.h"
#include "model/shared_prompts.h"

namespace thalweg::model {
namespace {

struct Case {
  const char* name;
  TinySpec spec;
};

std::vector<Case> cases() {
  std::vector<Case> list;
  TinySpec spec;
  spec.key_heads = 4;
  spec.value_heads = 8;
  spec.heads = 8;
  spec.kv_heads = 2;  // 3 and 4 ranks outnumber them
  list.push_back({"moe", spec});
  spec.kv_heads = 4;
  spec.value_heads = 4;
  spec.experts = 5;
  spec.shared_hidden = 2;  // fewer than 3 ranks
  spec.tied = true;
  spec.separate_experts = true;
  list.push_back({"moe_tied", spec});
  spec = {};
  spec.architecture = "qwen35";
  spec.experts = 0;
  spec.key_heads = 5;
  spec.value_heads = 15;
  spec.heads = 6;
  spec.kv_heads = 1;
  spec.interval = 2;
  list.push_back({"dense_uneven", spec});
  spec = {};
  spec.architecture = "qwen3next";
  spec.key_heads = 4;
  spec.value_heads = 8;
  spec.heads = 4;
  spec.kv_heads = 4;
  spec.dense_layers = {1};
  list.push_back({"next", spec});
  spec.renormalize = false;
  spec.interleaved_in = true;
  spec.mtp = false;
  list.push_back({"next_interleaved", spec});
  return list;
}

// f32 against f64 through a few layers, as of one rank.
constexpr double kBound = 2e-5;

class RanksThreads : public testing::TestWithParam<Case> {};

TEST_P(RanksThreads, GiveTheLogitsOfTheMathematics) {
  const TinyModel tiny(GetParam().spec);
  const std::vector<std::int32_t> tokens = random_tokens(80, GetParam().spec.vocabulary, 5);
  const auto expected = tiny.logits(tokens);
  const TempFolder folder;
  tiny.write_hugging_face(folder / "hf");
  tiny.write_gguf(folder / "model.gguf");
  for (const char* file : {"hf", "model.gguf"}) {
    for (const int count : {1, 2, 3, 4}) {
      RankedModel model(folder / file, precise(), count);
      {
        Sequence sequence = model->start();
        EXPECT_LT(difference(logits_of_each(*model, sequence, tokens), expected), kBound) << file << ", " << count;
        sequence.clear();
        double largest = 0;
        for (std::size_t t = 0; t < tokens.size(); ++t) {
          model->step(sequence, tokens[t]);
          largest = std::max(largest, difference(copy(sequence.logits()), expected[t]));
        }
        EXPECT_LT(largest, kBound) << file << ", steps, " << count << " ranks";
      }
      EXPECT_TRUE(model.end().empty());
    }
  }
}

TEST_P(RanksThreads, SharePrompts) {
  const TempFolder folder;
  TinyModel(GetParam().spec).write_gguf(folder / "model.gguf");
  // Both sides have the rounding of f32.
  const int count = GetParam().spec.kv_heads == 4 ? 3 : 2;
  expect_shared_prompts(folder, precise(), count, 2 * kBound);
}

TEST(RanksThreads, SharesOfAPromptFollowEachOther) {
  TinySpec spec;
  const TempFolder folder;
  TinyModel(spec).write_gguf(folder / "model.gguf");
  const auto file = io::GgufFile(folder / "model.gguf");
  const checkpoint::ModelConfig config = checkpoint::read_config(file.metadata(), file, folder / "model.gguf");
  const decode::Runtime runtime(kCpu, 1, {}, true);
  decode::StatePool pool(config, runtime, 1, 1, DType::kF32, DType::kF32, 0, false);
  const auto ranks = Ranks::in_process(3);
  std::vector<std::unique_ptr<decode::RankGroup>> groups;
  for (const auto& rank : ranks) groups.push_back(std::make_unique<decode::RankGroup>(rank));
  EXPECT_FALSE(decode::SequenceShare::takes(nullptr, 10000));
  EXPECT_FALSE(decode::SequenceShare::takes(groups[0].get(), 10000));  // none has the whole model
  for (const auto& group : groups) group->set_replicas();
  EXPECT_FALSE(decode::SequenceShare::takes(groups[0].get(), 767));
  for (const std::int64_t tokens : {768, 769, 1000, 8192, 100003}) {
    EXPECT_TRUE(decode::SequenceShare::takes(groups[0].get(), tokens));
    for (const std::int64_t seen : {0, 5, 100000}) {
      std::int64_t end = 0;
      std::vector<std::int64_t> sizes;
      for (const auto& group : groups) {
        const decode::SequenceShare share(config, *group, pool, 0, seen, tokens);
        EXPECT_EQ(share.begin(), end);
        EXPECT_EQ(share.begin() % 64, 0);
        EXPECT_GT(share.end(), share.begin());
        end = share.end();
        sizes.push_back(share.end() - share.begin());
      }
      EXPECT_EQ(end, tokens);
      // Later ones have more keys to look at.
      EXPECT_GE(sizes[0] + 64, sizes[1]);
      EXPECT_GE(sizes[1] + 64, sizes[2]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RanksThreads, testing::ValuesIn(cases()),
                         [](const testing::TestParamInfo<Case>& tested) { return std::string(tested.param.name); });

// Larger, so that its rows are whole blocks and its sums long.
TinySpec packed_spec() {
  TinySpec spec;
  spec.hidden = 256;
  spec.key_heads = 4;
  spec.value_heads = 8;
  spec.heads = 4;
  spec.head_dim = 64;
  spec.kv_heads = 2;
  spec.expert_hidden = 64;
  spec.shared_hidden = 128;
  return spec;
}

ModelOptions fast(int sequences = 1) {
  ModelOptions options;
  options.device = kCpu;
  options.threads = 2;
  options.context = 1024;
  options.sequences = sequences;
  return options;
}

TEST(RanksThreads, GreedyTextIsThatOfOneRankBeyondMargins) {
  const TempFolder folder;
  const TinyModel tiny(packed_spec());
  tiny.write_gguf(folder / "model.gguf", DType::kQ8_0);
  const std::vector<std::int32_t> prompt = random_tokens(70, 101, 3);
  for (const bool exact : {true, false}) {
    ModelOptions options = exact ? precise() : fast();
    Model alone = Model::load(folder / "model.gguf", options);
    Sequence expected = alone.start();
    Logits logits;
    const Generated text = alone.generate(expected, prompt, {}, 60, {}, {}, {},
                                          [&](auto, auto row) { logits.emplace_back(row.begin(), row.end()); });
    for (const int count : {2, 3, 4}) {
      RankedModel model(folder / "model.gguf", options, count);
      Sequence sequence = model->start();
      const Generated given = model->generate(sequence, prompt, {}, 60);
      for (std::size_t i = 0; i < text.tokens.size(); ++i) {
        ASSERT_LT(i, given.tokens.size());
        if (given.tokens[i] == text.tokens[i]) continue;
        // From here on the texts differ, which only a near tie excuses.
        const auto [least, most] = std::minmax_element(logits[i].begin(), logits[i].end());
        const float other = logits[i][static_cast<std::size_t>(given.tokens[i])];
        EXPECT_LT((*most - other) / (*most - *least), exact ? 1e-5F : 2e-2F) << count << " ranks, token " << i;
        break;
      }
    }
  }
}

TEST(RanksThreads, EqualRunsGiveEqualBits) {
  const TempFolder folder;
  TinyModel(packed_spec()).write_gguf(folder / "model.gguf", DType::kQ8_0);
  const std::vector<std::int32_t> tokens = random_tokens(300, 101, 9);
  Logits first;
  for (int run = 0; run < 3; ++run) {
    ModelOptions options = fast();
    options.threads = 1 + run;
    RankedModel model(folder / "model.gguf", options, 3);
    Sequence sequence = model->start();
    Logits logits = logits_of_each(*model, sequence, tokens);
    for (int i = 0; i < 5; ++i) {
      model->step(sequence, 7 + i);
      logits.push_back(copy(sequence.logits()));
    }
    if (run == 0) first = logits;
    ASSERT_EQ(logits.size(), first.size());
    for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_TRUE(same_bits(logits[i], first[i])) << run << ", " << i;
  }
}

TEST(RanksThreads, SessionsHoldTheStateOfAllRanks) {
  const TempFolder folder;
  TinyModel(cases()[0].spec).write_gguf(folder / "model.gguf");
  expect_sessions_of_all_ranks(folder, precise(2), 3);
  Model alone = Model::load(folder / "model.gguf", precise());
  Sequence sequence = alone.start();
  expect_error([&] { sequence.restore(folder / "session"); }, {"number of ranks"});
}

TEST(RanksThreads, AStoppedPrefillLeavesNoTrace) {
  const TempFolder folder;
  TinyModel(cases()[0].spec).write_gguf(folder / "model.gguf");
  ModelOptions options = precise();
  options.prefill_chunk = 16;
  RankedModel model(folder / "model.gguf", options, 2);
  const std::vector<std::int32_t> tokens = random_tokens(64, 101, 4);
  Sequence sequence = model->start();
  model->prefill(sequence, std::span(tokens).first(16));
  int calls = 0;
  EXPECT_FALSE(model->prefill(sequence, std::span(tokens).subspan(16), [&] { return ++calls < 2; }));
  EXPECT_EQ(sequence.tokens().size(), 16U);
  model->prefill(sequence, std::span(tokens).subspan(16));
  const std::vector<float> stopped = copy(sequence.logits());
  sequence.clear();
  model->prefill(sequence, tokens);
  EXPECT_TRUE(same_bits(sequence.logits(), stopped));
}

TEST(RanksThreads, WhatACallbackThrowsEndsTheCallAlone) {
  const TempFolder folder;
  TinyModel(cases()[0].spec).write_gguf(folder / "model.gguf");
  RankedModel model(folder / "model.gguf", precise(), 3);
  const std::vector<std::int32_t> tokens = random_tokens(64, 101, 4);
  {
    Sequence sequence = model->start();
    const auto refuse = [](std::int64_t index, std::span<const float>) {
      if (index == 3) throw std::runtime_error("enough");
    };
    EXPECT_THROW(model->prefill_each(sequence, tokens, refuse), std::runtime_error);
    sequence.clear();
    EXPECT_EQ(logits_of_each(*model, sequence, tokens).size(), tokens.size());
  }
  EXPECT_TRUE(model.end().empty());
}

TEST(RanksThreads, RefuseWhatCannotBeCut) {
  const TempFolder folder;
  TinySpec spec = packed_spec();
  spec.value_dim = 32;
  spec.head_dim = 64;
  TinyModel(spec).write_gguf(folder / "q4_k.gguf", DType::kQ4_K);
  TinyModel(cases()[0].spec).write_gguf(folder / "model.gguf");
  // Four heads of 64 columns are one block of 256.
  expect_error([&] { RankedModel(folder / "q4_k.gguf", precise(), 2); }, {"q4_k.gguf", ".weight", "Q4_K", "2 ranks"});
  expect_error([&] { RankedModel(folder / "model.gguf", precise(), 5); }, {"key heads", "5 ranks", "got 4"});
  ModelOptions options = precise();
  options.device = Device{DeviceType::kMetal, 0};
  expect_error([&] { RankedModel(folder / "model.gguf", options, 2); }, {"device", "metal"});
}

TEST(RanksThreads, SayWhichOneIsDifferent) {
  const TempFolder folder;
  TinySpec spec = cases()[0].spec;
  TinyModel(spec).write_gguf(folder / "a.gguf");
  spec.seed = 2;
  TinyModel(spec).write_gguf(folder / "b.gguf");
  for (const bool other_file : {true, false}) {
    const auto ranks = Ranks::in_process(3, 20);
    std::atomic<int> errors = 0;
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r) {
      threads.emplace_back([&, r] {
        ModelOptions options = precise();
        options.ranks = ranks[static_cast<std::size_t>(r)];
        if (r == 1 && !other_file) options.context = 512;
        try {
          Model::load(folder / (r == 1 && other_file ? "b.gguf" : "a.gguf"), options);
          ADD_FAILURE() << "loaded";
        } catch (const Error& error) {
          ++errors;
          const std::string what = error.what();
          EXPECT_NE(what.find("another one on rank 1"), std::string::npos) << what;
          EXPECT_NE(what.find(other_file ? "model file" : "options"), std::string::npos) << what;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(errors, 3);
  }
}

TEST(RanksThreads, OneThatIsLostEndsTheOthers) {
  const TempFolder folder;
  TinyModel(cases()[0].spec).write_gguf(folder / "model.gguf");
  for (const bool while_idle : {false, true}) {
    const auto ranks = Ranks::in_process(3, 2);
    RankedModel model(folder / "model.gguf", precise(), ranks);
    Sequence sequence = model->start();
    model->step(sequence, 1);
    ranks[2]->communicator().fail("killed by the test");
    if (while_idle) {
      for (int i = 0; i < 500 && ranks[0]->failure().empty(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
      EXPECT_NE(ranks[0]->failure().find("rank 2"), std::string::npos) << ranks[0]->failure();
    }
    expect_error(
        [&] {
          for (int i = 0; i < 100; ++i) model->step(sequence, 1);
        },
        {"rank"});
    sequence = Sequence();
    EXPECT_EQ(model.end().size(), 2U);
  }
}

TEST(Ranks, MemoryIsToldBeforeAnybodyStarts) {
  const TempFolder folder;
  TinyModel(cases()[0].spec).write_gguf(folder / "model.gguf");
  const RankMemory alone = rank_memory(folder / "model.gguf", 1).front();
  Model model = Model::load(folder / "model.gguf", precise());
  EXPECT_EQ(alone.weight_bytes, model.info().weight_bytes);
  EXPECT_EQ(alone.state_bytes, model.info().state_bytes);
  EXPECT_EQ(alone.copied_bytes, 0U);
  const std::vector<RankMemory> four = rank_memory(folder / "model.gguf", 4);
  ASSERT_EQ(four.size(), 4U);
  std::uint64_t states = 0;
  int experts = 0;
  for (const RankMemory& rank : four) {
    states += rank.state_bytes;
    experts += rank.experts;
    EXPECT_EQ(rank.key_heads, 1);
    EXPECT_EQ(rank.kv_heads, 1);
    EXPECT_EQ(rank.query_heads, 2);
    EXPECT_LT(rank.weight_bytes, alone.weight_bytes / 2);
    EXPECT_EQ(rank.cache_token_bytes, alone.cache_token_bytes / 2);
  }
  EXPECT_EQ(states, alone.state_bytes);
  EXPECT_EQ(experts, 6);
}

}  // namespace
}  // namespace thalweg::model
