// Models that two ranks run on two GPUs, beside one rank on one. Skipped with fewer.

#include <bit>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "core/device_functions.h"
#include "decode/ranked_device.h"
#include "model/ranks.h"
#include "model/shared_prompts.h"
#include "ops/backends.h"
#include "thalweg/backend.h"

namespace thalweg::model {
namespace {

// As of one GPU beside the CPU (device_test.cc).
constexpr double kExactBound = 2e-4;
constexpr double kFastBound = 4e-2;

std::string why_not() {
  const Backend& cuda = backend(DeviceType::kCuda);
  if (!cuda.unavailable.empty()) return cuda.unavailable;
  const DeviceRanks& ranks = cuda.device->resident->ranks();
  if (ranks.devices() < 2) return "needs two GPUs";
  return ranks.unavailable();
}

#define NEEDS_TWO_GPUS() \
  if (const std::string why = why_not(); !why.empty()) GTEST_SKIP() << why

std::vector<TinySpec> specs() {
  TinySpec experts;
  experts.key_heads = 4;
  experts.value_heads = 8;
  experts.heads = 8;
  experts.kv_heads = 2;
  TinySpec uneven;
  uneven.architecture = "qwen35";
  uneven.experts = 0;
  uneven.key_heads = 5;
  uneven.value_heads = 15;
  uneven.heads = 6;
  uneven.kv_heads = 1;
  uneven.interval = 2;
  TinySpec odd = experts;
  odd.experts = 5;
  odd.tied = true;
  odd.vocabulary = 128;  // divides; that of the others does not
  return {experts, uneven, odd};
}

// Rows of whole blocks, so that the kernels of packed weights run.
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

TEST(RanksOnGpus, GiveTheLogitsOfOneRank) {
  NEEDS_TWO_GPUS();
  for (const TinySpec& spec : specs()) {
    SCOPED_TRACE(spec.architecture + " of " + std::to_string(spec.key_heads) + " key heads");
    const TempFolder folder;
    TinyModel(spec).write_gguf(folder / "model.gguf");
    const std::vector<std::int32_t> tokens = random_tokens(150, spec.vocabulary, 5);
    Model alone = Model::load(folder / "model.gguf", precise());
    Sequence expected = alone.start();
    const Logits of_each = logits_of_each(alone, expected, tokens);
    for (const bool exact : {true, false}) {
      RankedModel model(folder / "model.gguf", on_gpu(1, exact), 2);
      EXPECT_NE(model->info().device.find("2 ranks"), std::string::npos) << model->info().device;
      {
        Sequence sequence = model->start();
        const Logits given = logits_of_each(*model, sequence, tokens);
        std::vector<double> differences;
        for (std::size_t i = 0; i < given.size(); ++i) differences.push_back(difference(given[i], of_each[i]));
        std::sort(differences.begin(), differences.end());
        // bf16 activations may choose another expert where two are close.
        EXPECT_LT(exact ? differences.back() : differences[differences.size() * 8 / 10],
                  exact ? kExactBound : kFastBound);
        sequence.clear();
        model->prefill(sequence, std::span(tokens).first(100));
        for (std::size_t i = 100; i < tokens.size(); ++i) model->step(sequence, tokens[i]);
        const double steps = difference(copy(sequence.logits()), of_each.back());
        EXPECT_LT(steps, exact ? kExactBound : INFINITY);
      }
      EXPECT_TRUE(model.end().empty());
    }
  }
}

TEST(RanksOnGpus, TheLoopDecodesAsStepsDo) {
  NEEDS_TWO_GPUS();
  for (const int vocabulary : {101, 128}) {
    const TempFolder folder;
    TinySpec spec = packed_spec();
    spec.vocabulary = vocabulary;
    TinyModel(spec).write_gguf(folder / "model.gguf", DType::kQ8_0);
    RankedModel model(folder / "model.gguf", on_gpu(4), 2);
    const std::vector<std::int32_t> prompt = random_tokens(30, vocabulary, 3);
    for (const float temperature : {0.0F, 0.9F}) {
      Sampling sampling;
      sampling.temperature = temperature;
      sampling.repeat_penalty = temperature > 0 ? 1.2F : 1.0F;
      sampling.seed = 7;
      Sequence looped = model->start();
      const Generated generated = model->generate(looped, prompt, sampling, 60);
      Sequence stepped = model->start();
      model->prefill(stepped, prompt);
      std::vector<std::int32_t> tokens;
      for (std::size_t i = 0; i < generated.tokens.size(); ++i) {
        tokens.push_back(model->sample(stepped, sampling));
        model->step(stepped, tokens.back());
      }
      EXPECT_EQ(generated.tokens, tokens);
      EXPECT_TRUE(same_bits(looped.logits(), stepped.logits()));
      const std::vector<std::int32_t> more = random_tokens(5, vocabulary, 4);
      model->prefill(looped, more);
      model->prefill(stepped, more);
      EXPECT_TRUE(same_bits(looped.logits(), stepped.logits()));
    }
  }
}

TEST(RanksOnGpus, GreedyTextIsThatOfOneRankBeyondMargins) {
  NEEDS_TWO_GPUS();
  const TempFolder folder;
  TinyModel(packed_spec()).write_gguf(folder / "model.gguf", DType::kQ8_0);
  const std::vector<std::int32_t> prompt = random_tokens(70, 101, 3);
  Model alone = Model::load(folder / "model.gguf", on_gpu(1, true));
  Sequence expected = alone.start();
  Logits logits;
  const Generated text = alone.generate(expected, prompt, {}, 60, {}, {}, {},
                                        [&](auto, auto row) { logits.emplace_back(row.begin(), row.end()); });
  RankedModel model(folder / "model.gguf", on_gpu(1, true), 2);
  Sequence sequence = model->start();
  const Generated given = model->generate(sequence, prompt, {}, 60);
  for (std::size_t i = 0; i < text.tokens.size(); ++i) {
    ASSERT_LT(i, given.tokens.size());
    if (given.tokens[i] == text.tokens[i]) continue;
    const auto [least, most] = std::minmax_element(logits[i].begin(), logits[i].end());
    const float other = logits[i][static_cast<std::size_t>(given.tokens[i])];
    EXPECT_LT((*most - other) / (*most - *least), 2 * kExactBound) << "token " << i;
    break;
  }
}

TEST(RanksOnGpus, EqualRunsGiveEqualBits) {
  NEEDS_TWO_GPUS();
  const TempFolder folder;
  TinyModel(packed_spec()).write_gguf(folder / "model.gguf", DType::kQ8_0);
  const std::vector<std::int32_t> tokens = random_tokens(300, 101, 9);
  Logits first;
  std::vector<std::int32_t> text;
  for (int run = 0; run < 3; ++run) {
    RankedModel model(folder / "model.gguf", on_gpu(3), 2);
    Sequence sequence = model->start();
    Logits logits = logits_of_each(*model, sequence, tokens);
    const Generated generated = model->generate(sequence, {}, {}, 40);
    logits.push_back(copy(sequence.logits()));
    if (run == 0) first = logits;
    if (run == 0) text = generated.tokens;
    EXPECT_EQ(generated.tokens, text);
    ASSERT_EQ(logits.size(), first.size());
    for (std::size_t i = 0; i < logits.size(); ++i) ASSERT_TRUE(same_bits(logits[i], first[i])) << run << ", " << i;
  }
}

TEST(RanksOnGpus, BatchesDecodeAndSequencesComeAndGo) {
  NEEDS_TWO_GPUS();
  const TempFolder folder;
  TinyModel(packed_spec()).write_gguf(folder / "model.gguf", DType::kQ8_0);
  RankedModel model(folder / "model.gguf", on_gpu(5, true), 2);
  Model alone = Model::load(folder / "model.gguf", on_gpu(5, true));
  for (int round = 0; round < 3; ++round) {
    std::vector<std::vector<float>> given[2];
    for (Model* of : {&*model, &alone}) {
      std::vector<Sequence> sequences;
      std::vector<Sequence*> handles;
      for (int n = 0; n < 3 + round; ++n) {
        sequences.push_back(of->start());
        of->prefill(sequences.back(), random_tokens(20 + 9 * n, 101, n + round));
      }
      for (Sequence& sequence : sequences) handles.push_back(&sequence);
      // The same tokens on both, whatever they would choose.
      const std::vector<std::int32_t> tokens = random_tokens(3 + round, 101, 40 + round);
      of->step(handles, tokens);
      const std::vector<Sampling> sampling(sequences.size());
      of->decode(handles, sampling, 1, {}, {}, true);
      for (Sequence& sequence : sequences) given[of == &alone ? 1 : 0].push_back(copy(sequence.logits()));
    }
    for (std::size_t n = 0; n < given[0].size(); ++n) EXPECT_LT(difference(given[0][n], given[1][n]), kExactBound) << n;
  }
}

TEST(RanksOnGpus, SessionsHoldTheStateOfAllRanks) {
  NEEDS_TWO_GPUS();
  const TempFolder folder;
  TinyModel(packed_spec()).write_gguf(folder / "model.gguf", DType::kQ8_0);
  expect_sessions_of_all_ranks(folder, on_gpu(2), 2);
}

TEST(RanksOnGpus, SharePrompts) {
  NEEDS_TWO_GPUS();
  for (const TinySpec& spec : specs()) {
    const TempFolder folder;
    TinyModel(spec).write_gguf(folder / "model.gguf");
    expect_shared_prompts(folder, on_gpu(2, true), 2, kExactBound);
  }
}

// Of a step's sizes, which one kernel sums, and of a prompt's, which NCCL does: every call with other values, some in a
// graph, and with pauses of either rank.
TEST(RanksOnGpus, SumsAreThoseOfEveryCall) {
  NEEDS_TWO_GPUS();
  const auto ranks = Ranks::in_process(2, 20);
  std::vector<std::string> errors(2);
  const auto value = [](int rank, int call, std::int64_t i) {
    return static_cast<float>((i * 7 + call * 13 + rank * 5) % 251) - 125.0F;  // whose sums bf16 holds
  };
  const auto body = [&](int r) {
    const DeviceRanks& devices = backend(DeviceType::kCuda).device->resident->ranks();
    decode::Runtime runtime(Device{DeviceType::kCuda, r}, 1, {}, false);
    decode::RankedDevice device(runtime, devices, ranks[static_cast<std::size_t>(r)]->communicator());
    constexpr std::int64_t kMost = 1 << 19;
    const DeviceMemory memory(runtime.device(), kMost * sizeof(float));
    std::vector<float> values(kMost);
    std::vector<std::uint16_t> halves(kMost);
    int call = 0;
    for (const std::int64_t count : {4, 2048, 12, 100000, 131072, 4096, 262144, 524288, 2048}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        const Tensor sum(memory.data(), dtype, {count}, runtime.device());
        const decode::Graph graph(runtime, [&] { device.all_reduce(sum); });
        for (int repeat = 0; repeat < 40; ++repeat, ++call) {
          if (repeat % 16 == r * 8) std::this_thread::sleep_for(std::chrono::milliseconds(2));
          for (std::int64_t i = 0; i < count; ++i) {
            values[static_cast<std::size_t>(i)] = value(r, call, i);
            const auto bits = std::bit_cast<std::uint32_t>(values[static_cast<std::size_t>(i)]);
            halves[static_cast<std::size_t>(i)] = static_cast<std::uint16_t>(bits >> 16);
          }
          const bool wide = dtype == DType::kF32;
          void* const data = wide ? static_cast<void*>(values.data()) : halves.data();
          const auto bytes = static_cast<std::size_t>(bytes_of(dtype, count));
          runtime.upload(memory.data(), data, bytes);
          if (repeat % 2 == 0) {
            device.all_reduce(sum);
          } else {
            graph.launch();
          }
          runtime.download(data, memory.data(), bytes);
          for (std::int64_t i = 0; i < count; ++i) {
            const auto at = static_cast<std::size_t>(i);
            const float given = wide ? values[at] : std::bit_cast<float>(std::uint32_t{halves[at]} << 16);
            if (given == value(0, call, i) + value(1, call, i)) continue;
            errors[static_cast<std::size_t>(r)] = std::to_string(count) + " elements, call " + std::to_string(call) +
                                                  ", element " + std::to_string(i) + ": " + std::to_string(given);
            return;
          }
        }
      }
    }
  };
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(r)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
}

TEST(RanksOnGpus, OneThatIsLostEndsTheOther) {
  NEEDS_TWO_GPUS();
  const TempFolder folder;
  TinyModel(packed_spec()).write_gguf(folder / "model.gguf", DType::kQ8_0);
  const auto ranks = Ranks::in_process(2, 3);
  RankedModel model(folder / "model.gguf", on_gpu(), ranks);
  {
    Sequence sequence = model->start();
    model->generate(sequence, random_tokens(20, 101, 1), {}, 10);
    ranks[1]->communicator().fail("killed by the test");
    const auto begin = std::chrono::steady_clock::now();
    expect_error([&] { model->generate(sequence, {}, {}, 900); }, {"rank"});
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  }
  EXPECT_EQ(model.end().size(), 1U);
}

// A rank whose device does not take part, though its process lives.
TEST(RanksOnGpus, OneThatHangsEndsTheOther) {
  NEEDS_TWO_GPUS();
  const TempFolder folder;
  TinyModel(packed_spec()).write_gguf(folder / "model.gguf", DType::kQ8_0);
  const auto begin = std::chrono::steady_clock::now();
  const auto ranks = Ranks::in_process(2, 2);
  std::vector<std::string> errors(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const DeviceRanks& devices = backend(DeviceType::kCuda).device->resident->ranks();
      decode::Runtime runtime(Device{DeviceType::kCuda, r}, 1, {}, false);
      decode::RankedDevice device(runtime, devices, ranks[static_cast<std::size_t>(r)]->communicator());
      const DeviceMemory memory(runtime.device(), 4096);
      const Tensor sum(memory.data(), DType::kF32, {1024}, runtime.device());
      device.all_reduce(sum);
      runtime.wait();
      if (r == 1) {
        while (ranks[1]->failure().empty() && ranks[0]->failure().empty()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        return;
      }
      try {
        device.all_reduce(sum);
        runtime.wait();
      } catch (const Error& error) {
        errors[0] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(errors[0].find("2.0 s"), std::string::npos) << errors[0];
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

}  // namespace
}  // namespace thalweg::model
