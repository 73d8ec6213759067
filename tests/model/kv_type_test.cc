// Keys and values of 8 bits: what a token takes, and how far the logits move.

#include "model/support.h"

namespace thalweg::model {
namespace {

TEST(KvTypes, EightBitsMoveTheLogitsByTheirRounding) {
  for (const char* architecture : {"qwen3next", "qwen35", "qwen35moe"}) {
    SCOPED_TRACE(architecture);
    TinySpec spec;
    spec.architecture = architecture;
    if (spec.architecture == "qwen35") spec.experts = 0;
    const TempFolder folder;
    TinyModel(spec).write_gguf(folder / "model.gguf");
    const auto load = [&](DType cache) {
      ModelOptions options = precise(2);
      options.kv_dtype = cache;
      return Model::load(folder / "model.gguf", options);
    };
    Model full = load(DType::kF32);
    Model packed = load(DType::kQ8_0);
    EXPECT_EQ(packed.info().kv_dtype, DType::kQ8_0);
    EXPECT_EQ(packed.info().cache_token_bytes * 128, full.info().cache_token_bytes * 34);
    std::vector<std::int32_t> tokens;
    for (int i = 0; i < 200; ++i) tokens.push_back((i * 37 + 11) % spec.vocabulary);
    Sequence exact = full.start();
    Sequence rounded = packed.start();
    const Logits expected = logits_of_each(full, exact, tokens);
    const Logits given = logits_of_each(packed, rounded, tokens);
    std::vector<double> differences;
    for (std::size_t i = 0; i < given.size(); ++i) differences.push_back(difference(given[i], expected[i]));
    std::sort(differences.begin(), differences.end());
    // Values with errors of 1/254 of a block's largest, in some of the layers. Where two experts are close, a token may
    // go to another one, which moves its logits far: most tokens have to keep the bound, not the worst.
    EXPECT_GT(differences.back(), 1e-6);
    EXPECT_LT(differences[differences.size() * 8 / 10], 1e-2);
    // Steps on their own are those of the prefill.
    Sequence stepped = packed.start();
    packed.prefill(stepped, std::span(tokens).first(150));
    for (std::size_t i = 150; i < tokens.size(); ++i) packed.step(stepped, tokens[i]);
    EXPECT_LT(difference(copy(stepped.logits()), given.back()), 1e-3);
  }
}

TEST(KvTypes, EightBitsNeedHeadsOfWholeBlocks) {
  TinySpec spec;
  spec.head_dim = 48;
  const TempFolder folder;
  TinyModel(spec).write_gguf(folder / "model.gguf");
  ModelOptions options = precise();
  options.kv_dtype = DType::kQ8_0;
  expect_error([&] { Model::load(folder / "model.gguf", options); }, {"kv_dtype", "heads of 48", "Q8_0"});
}

}  // namespace
}  // namespace thalweg::model
