#include "decode/sampler.h"

#include <limits>
#include <map>

#include "decode/checksum.h"
#include "model/support.h"

namespace thalweg::decode {
namespace {

using model::expect_error;

constexpr int kDraws = 20000;

// How often each token is drawn, over positions or seeds.
std::map<std::int32_t, int> histogram(const std::vector<float>& logits, Sampling sampling, bool over_seeds = false) {
  std::map<std::int32_t, int> counts;
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < kDraws; ++i) {
    if (over_seeds) {
      sampling.seed = static_cast<std::uint64_t>(i);
    } else {
      tokens.assign(static_cast<std::size_t>(i % 500), 0);
      sampling.seed = static_cast<std::uint64_t>(i / 500);
    }
    ++counts[sample_token(logits, tokens, sampling)];
  }
  return counts;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  double total = 0;
  for (float logit : logits) total += p.emplace_back(std::exp(static_cast<double>(logit) / temperature));
  for (double& value : p) value /= total;
  return p;
}

void expect_distribution(const std::map<std::int32_t, int>& counts, const std::vector<double>& p) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    const auto found = counts.find(static_cast<std::int32_t>(i));
    const double count = found == counts.end() ? 0 : found->second;
    const double spread = std::sqrt(kDraws * p[i] * (1 - p[i]));
    EXPECT_NEAR(count, kDraws * p[i], 5 * spread + 1e-9) << "token " << i;
  }
}

const std::vector<float> kLogits = {0.5F, 2.0F, -1.0F, 1.0F, 2.0F, 0.0F, -3.0F, 1.5F};

TEST(Sampler, GreedyTakesTheLargestAndOfEqualsTheFirst) {
  EXPECT_EQ(sample_token(kLogits, {}, {}), 1);
  Sampling sampling;
  sampling.top_k = 1;
  sampling.temperature = 5;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    sampling.seed = seed;
    EXPECT_EQ(sample_token(kLogits, {}, sampling), 1);
  }
  sampling = {};
  sampling.temperature = 1e-6F;  // nearly greedy, but two equal logits stay equal
  const auto counts = histogram(kLogits, sampling);
  EXPECT_EQ(counts.size(), 2U);
  EXPECT_NEAR(counts.at(1), kDraws / 2, 400);
  EXPECT_NEAR(counts.at(4), kDraws / 2, 400);
}

TEST(Sampler, DrawsWithTheProbabilitiesOfTheSoftmax) {
  for (float temperature : {0.5F, 1.0F, 2.0F}) {
    Sampling sampling;
    sampling.temperature = temperature;
    for (bool over_seeds : {false, true}) {
      expect_distribution(histogram(kLogits, sampling, over_seeds), softmax(kLogits, static_cast<double>(temperature)));
    }
  }
}

std::vector<double> kept(const std::vector<std::size_t>& tokens) {
  const std::vector<double> p = softmax(kLogits, 1);
  std::vector<double> result(p.size());
  double total = 0;
  for (std::size_t token : tokens) total += p[token];
  for (std::size_t token : tokens) result[token] = p[token] / total;
  return result;
}

TEST(Sampler, CutsWhatIsUnlikely) {
  Sampling sampling;
  sampling.temperature = 1;
  sampling.top_k = 3;
  expect_distribution(histogram(kLogits, sampling), kept({1, 4, 7}));
  sampling = {};
  sampling.temperature = 1;
  // Probabilities in order: 0.296 0.296 0.180 0.109 0.066 ..; 0.8 needs the fourth.
  sampling.top_p = 0.8F;
  expect_distribution(histogram(kLogits, sampling), kept({1, 4, 7, 3}));
  sampling.top_p = 0.25F;
  expect_distribution(histogram(kLogits, sampling), kept({1}));
  sampling.top_p = 1;
  sampling.min_p = 0.3F;  // e^-1 is above it, e^-1.5 is not
  expect_distribution(histogram(kLogits, sampling), kept({1, 4, 7, 3}));
  sampling.min_p = 1;
  expect_distribution(histogram(kLogits, sampling), kept({1, 4}));
  // Together: of the two that top_k leaves, each has half, and top_p takes the first.
  sampling.min_p = 0.1F;
  sampling.top_k = 2;
  sampling.top_p = 0.5F;
  expect_distribution(histogram(kLogits, sampling), kept({1}));
}

TEST(Sampler, SettingsThatCutNothingChangeNoDraw) {
  std::vector<float> logits;
  for (int i = 0; i < 3000; ++i) logits.push_back(static_cast<float>(i * 37 % 1000) / 200.0F);
  Sampling plain;
  plain.temperature = 0.9F;
  Sampling all = plain;
  all.top_k = 3000;
  all.min_p = 1e-12F;
  Sampling nearly = plain;
  nearly.top_p = 0.999999F;
  int same = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    plain.seed = all.seed = nearly.seed = seed;
    const std::int32_t token = sample_token(logits, {}, plain);
    EXPECT_EQ(token, sample_token(logits, {}, all));
    EXPECT_EQ(token, sample_token(logits, {}, plain));
    same += token == sample_token(logits, {}, nearly) ? 1 : 0;
  }
  EXPECT_GE(same, 199);
}

TEST(Sampler, PunishesRepetition) {
  const std::vector<float> logits = {1.0F, 2.0F, -0.5F, 1.9F};
  Sampling sampling;
  sampling.repeat_penalty = 1.5F;
  EXPECT_EQ(sample_token(logits, {}, sampling), 1);
  EXPECT_EQ(sample_token(logits, std::vector<std::int32_t>{1}, sampling), 3);
  EXPECT_EQ(sample_token(logits, std::vector<std::int32_t>{1, 3, 1, 1}, sampling), 1) << "punished more than once";
  EXPECT_EQ(sample_token(logits, std::vector<std::int32_t>{1, 3, 0}, sampling), 1);
  sampling.repeat_last = 1;
  EXPECT_EQ(sample_token(logits, std::vector<std::int32_t>{1, 3}, sampling), 1) << "only the last one counts";
  sampling.repeat_last = 0;
  EXPECT_EQ(sample_token(logits, std::vector<std::int32_t>{1}, sampling), 1);
  sampling.repeat_last = -1;
  std::vector<std::int32_t> many(1000, 2);
  many.front() = 1;
  EXPECT_EQ(sample_token(logits, many, sampling), 3) << "all count";
  // Negative logits are reduced too.
  const std::vector<float> negative = {-1.0F, -1.1F};
  EXPECT_EQ(sample_token(negative, std::vector<std::int32_t>{0}, sampling), 1);
}

TEST(Sampler, RefusesLogitsThatAreNoNumbers) {
  const float infinity = std::numeric_limits<float>::infinity();
  expect_error([] { sample_token(std::vector<float>{1, NAN, 2}, {}, {}); }, {"nan", "token 1"});
  expect_error([&] { sample_token(std::vector<float>{1, 2, infinity}, {}, {}); }, {"inf", "token 2"});
  expect_error([&] { sample_token(std::vector<float>{-infinity, -infinity}, {}, {}); }, {"logits"});
  expect_error([] { sample_token({}, {}, {}); }, {"logits"});
  Sampling sampling;
  sampling.temperature = 1;
  sampling.seed = 4;
  EXPECT_EQ(sample_token(std::vector<float>{-infinity, 0, -infinity}, {}, sampling), 1);
}

TEST(Sampler, RefusesSettingsOutOfRange) {
  const auto refused = [](auto change, std::string_view name) {
    Sampling sampling;
    change(sampling);
    expect_error([&] { check_sampling(sampling); }, {name});
  };
  refused([](Sampling& s) { s.temperature = -0.1F; }, "temperature");
  refused([](Sampling& s) { s.temperature = NAN; }, "temperature");
  refused([](Sampling& s) { s.top_k = -1; }, "top_k");
  refused([](Sampling& s) { s.top_p = 0; }, "top_p");
  refused([](Sampling& s) { s.top_p = 1.01F; }, "top_p");
  refused([](Sampling& s) { s.min_p = -0.5F; }, "min_p");
  refused([](Sampling& s) { s.repeat_penalty = 0; }, "repeat_penalty");
  refused([](Sampling& s) { s.repeat_last = -2; }, "repeat_last");
}

TEST(Checksum, DoesNotDependOnHowBytesAreCut) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 31 % 256);
  Checksum whole;
  whole.add(text);
  for (std::size_t step : {std::size_t{1}, std::size_t{3}, std::size_t{8}, std::size_t{13}, std::size_t{64}}) {
    Checksum pieces;
    for (std::size_t begin = 0; begin < text.size(); begin += step)
      pieces.add(std::string_view(text).substr(begin, step));
    EXPECT_EQ(pieces.value(), whole.value()) << step;
  }
  Checksum longer;
  longer.add(text + '\0');
  EXPECT_NE(longer.value(), whole.value());
}

}  // namespace
}  // namespace thalweg::decode
