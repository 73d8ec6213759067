// Grammars in the engine: whatever the model would write, what it writes is JSON.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/outputs.h"
#include "thalweg/engine.h"
#include "thalweg/error.h"
#include "thalweg/grammar.h"

namespace thalweg {
namespace {

constexpr std::string_view kSchema = R"({"type": "object", "properties": {"place": {"enum": ["kitchen", "garden"]},
    "count": {"type": "integer", "minimum": 10, "maximum": 99}}, "required": ["place", "count"]})";

Model shipped_model() {
  ModelOptions options;
  options.device = kCpu;
  options.threads = 2;
  options.context = 2048;
  options.sequences = 4;
  return Model::load(THALWEG_MODEL, options);
}

Request request_for(const Engine& engine, const Grammar& grammar, std::uint64_t seed) {
  Request request;
  request.prompt = engine.model().tokenize("John went to the kitchen. Where is John?");
  request.max_tokens = 200;
  request.sampling.temperature = 1.5F;
  request.sampling.seed = seed;
  request.constraint = engine.constraint(grammar);
  return request;
}

TEST(EngineConstraint, AnswersFollowTheSchema) {
  Engine engine(shipped_model());
  const Grammar grammar = Grammar::json_schema(kSchema);
  std::vector<TokenStream> streams;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) streams.push_back(engine.stream(request_for(engine, grammar, seed)));
  for (TokenStream& stream : streams) {
    const Output output = read_all(std::move(stream));
    EXPECT_EQ(output.finish, FinishReason::kEndToken) << output.text << output.error;
    EXPECT_NE(output.text.find("\"place\""), std::string::npos) << output.text;
    EXPECT_EQ(output.text.back(), '}') << output.text;
    // The engine's own masks hold a text that it wrote before, and refuse one that it cannot have written.
    const std::unique_ptr<TokenConstraint> again = engine.constraint(grammar);
    for (const std::int32_t token : engine.model().tokenize(output.text)) again->accept(token);
  }
  const std::unique_ptr<TokenConstraint> constraint = engine.constraint(grammar);
  EXPECT_THROW(constraint->accept(engine.model().tokenize("a").front()), Error);
}

TEST(EngineConstraint, AMaskHasAWordForEach32Tokens) {
  Engine engine(shipped_model());
  const std::unique_ptr<TokenConstraint> constraint = engine.constraint(Grammar::any_json());
  const auto vocabulary = static_cast<std::size_t>(engine.model().info().vocabulary);
  EXPECT_EQ(constraint->allowed().size(), (vocabulary + 31) / 32);
}

// The shipped model's vocabulary has no </think>.
TEST(EngineConstraint, ThoughtsNeedATokenThatEndsThem) {
  Engine engine(shipped_model());
  EXPECT_THROW(engine.constraint(Grammar::any_json(), true), Error);
}

}  // namespace
}  // namespace thalweg
