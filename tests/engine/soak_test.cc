// Requests of all lengths that come, end and are cancelled while others run: each gives what it gives alone. On the CPU
// to the bit, on a GPU too if batches are invariant; else, where the sums of a step in company have another order, up
// to tokens that were all but equal. Without a GPU the latter is skipped.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/outputs.h"
#include "thalweg/backend.h"
#include "thalweg/engine.h"

namespace thalweg {
namespace {

struct Soak {
  DeviceType device;
  int requests;
  int sequences;
  double tolerance;  // of log-probabilities, and of the margin within which another token may be chosen
  bool batch_invariant = false;
};

Engine engine_of(const Soak& soak, int sequences) {
  ModelOptions options;
  options.device = Device{soak.device, 0};
  options.context = 4096;
  options.sequences = sequences;
  options.exact = !soak.batch_invariant;
  options.batch_invariant = soak.batch_invariant;
  return Engine(Model::load(THALWEG_MODEL, options));
}

using Random = std::mt19937;
int draw(Random& random, int first, int last) { return std::uniform_int_distribution(first, last)(random); }

std::string some_text(Random& random) {
  constexpr std::string_view kPeople[] = {"John", "Mary", "Daniel", "Sandra"};
  constexpr std::string_view kDeeds[] = {" went to the ", " moved to the ", " took the ball to the ",
                                         " travelled to the "};
  constexpr std::string_view kPlaces[] = {"kitchen", "garden", "office", "hall", "bathroom"};
  std::string text;
  const int sentences = draw(random, 0, 3) == 0 ? draw(random, 40, 160) : draw(random, 1, 40);
  for (int i = 0; i < sentences; ++i) {
    text.append(kPeople[draw(random, 0, 3)]).append(kDeeds[draw(random, 0, 3)]).append(kPlaces[draw(random, 0, 4)]);
    text += ". ";
  }
  return text.append("Where is ").append(kPeople[draw(random, 0, 3)]).append("?");
}

// What a request asks for, and what it gives alone.
struct Kind {
  std::vector<std::int32_t> prompt;
  int max_tokens;
  bool ignore_end;
  Output alone;

  Request request() const {
    Request request;
    request.prompt = prompt;
    request.max_tokens = max_tokens;
    request.ignore_end = ignore_end;
    request.logprobs = 2;
    return request;
  }
};

std::vector<Kind> some_kinds(const Soak& soak, Random& random) {
  constexpr int kKinds = 24;
  Engine engine = engine_of(soak, 1);
  std::vector<Kind> kinds;
  for (int i = 0; i < kKinds; ++i) {
    Kind kind{engine.model().tokenize(some_text(random)), draw(random, 1, 48), draw(random, 0, 1) == 0, {}};
    kind.alone = read_all(engine.stream(kind.request()));
    kinds.push_back(std::move(kind));
  }
  return kinds;
}

struct Running {
  const Kind* kind;
  TokenStream stream;
  bool cancels;  // once it is looked at, waiting, running or ended
  Output so_far = {};
};

// Whether all tokens are those of the request alone.
bool check(const Soak& soak, const Running& run, bool whole) {
  const Output& alone = run.kind->alone;
  const Output& given = run.so_far;
  EXPECT_EQ(given.error, "");
  EXPECT_LE(given.tokens.size(), static_cast<std::size_t>(run.kind->max_tokens));
  for (std::size_t i = 0; i < std::min(given.logprobs.size(), alone.logprobs.size()); ++i) {
    const TokenLogprobs& expected = alone.logprobs[i];
    if (given.logprobs[i].chosen.token != expected.chosen.token) {
      EXPECT_LE(expected.likeliest[0].logprob - expected.likeliest[1].logprob, soak.tolerance) << "token " << i;
      return false;
    }
    EXPECT_NEAR(given.logprobs[i].chosen.logprob, expected.chosen.logprob, soak.tolerance) << "token " << i;
  }
  if (whole) {
    EXPECT_EQ(given.tokens, alone.tokens);
    EXPECT_EQ(given.finish, alone.finish);
  }
  return true;
}

void run(const Soak& soak) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const std::vector<Kind> kinds = some_kinds(soak, random);
  Engine engine = engine_of(soak, soak.sequences);
  std::vector<Running> running;
  int begun = 0;
  int cancelled = 0;
  int different = 0;
  while (begun < soak.requests || !running.empty()) {
    while (begun < soak.requests && running.size() < 3 * static_cast<std::size_t>(soak.sequences)) {
      const Kind& kind = kinds[static_cast<std::size_t>(draw(random, 0, static_cast<int>(kinds.size()) - 1))];
      running.push_back({&kind, engine.stream(kind.request()), draw(random, 0, 3) == 0});
      ++begun;
    }
    // Of any that runs; the others' outputs wait.
    const auto at = static_cast<std::size_t>(draw(random, 0, static_cast<int>(running.size()) - 1));
    Running& one = running[at];
    if (std::exchange(one.cancels, false)) one.stream.cancel();
    if (Output output; one.stream.next(output)) {
      one.so_far.tokens.insert(one.so_far.tokens.end(), output.tokens.begin(), output.tokens.end());
      one.so_far.logprobs.insert(one.so_far.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
      one.so_far.finish = output.finish;
      one.so_far.error += output.error;
      if (!output.finish) continue;
    }
    const bool was_cancelled = one.so_far.finish == FinishReason::kCancelled;
    cancelled += was_cancelled ? 1 : 0;
    different += check(soak, one, !was_cancelled) ? 0 : 1;
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(at));
    if (testing::Test::HasFailure()) break;
  }
  running.clear();
  EXPECT_TRUE(engine.drain(60));
  const EngineStats stats = engine.stats();
  EXPECT_EQ(stats.failed, 0U);
  if (testing::Test::HasFailure()) return;
  EXPECT_EQ(stats.finished + stats.cancelled, static_cast<std::uint64_t>(soak.requests));
  EXPECT_EQ(stats.cancelled, static_cast<std::uint64_t>(cancelled));
  EXPECT_GT(cancelled, soak.requests / 20);
  EXPECT_LE(different, soak.requests / 20);
}

TEST(EngineSoak, RequestsInCompanyGiveWhatTheyGiveAlone) { run({DeviceType::kCpu, 120, 6, 0.0}); }

void run_on_gpu(const Soak& soak) {
  for (const BackendInfo& backend : backends()) {
    if (backend.type == DeviceType::kCuda && backend.available) return run(soak);
  }
  GTEST_SKIP() << "no GPU";
}

TEST(EngineOnDevice, TwoThousandRequestsGiveWhatTheyGiveAlone) { run_on_gpu({DeviceType::kCuda, 2000, 24, 2e-2}); }

TEST(EngineOnDevice, InvariantBatchesGiveTheSameBits) { run_on_gpu({DeviceType::kCuda, 1000, 24, 0.0, true}); }

}  // namespace
}  // namespace thalweg
