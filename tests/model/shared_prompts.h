#pragma once

// Prompts that ranks share, each with the whole model, beside one rank.

#include <string>
#include <vector>

#include "model/ranks.h"

namespace thalweg::model {

// On `count` ranks: logits after prompts, of steps behind them, of a prompt that goes on, and from a session, within
// `bound` of one rank's; equal runs give equal bits. "model.gguf" has a vocabulary of 101 tokens or more.
inline void expect_shared_prompts(const TempFolder& folder, ModelOptions options, int count, double bound) {
  options.context = 4096;
  options.prefill_chunk = 2048;
  options.sequences = 2;
  const auto prompt = random_tokens(900, 101, 3);
  const auto more = random_tokens(801, 101, 4);
  const auto few = random_tokens(70, 101, 5);
  // All that a run says: logits [vocabulary] each.
  const auto run = [&](Model& model, Sequence& sequence) {
    Logits logits;
    const auto keep = [&] { logits.push_back(copy(sequence.logits())); };
    model.prefill(sequence, prompt);
    keep();
    for (const std::int32_t token : {3, 7, 50}) {
      model.step(sequence, token);
      keep();
    }
    model.prefill(sequence, more);
    keep();
    model.prefill(sequence, few);
    keep();
    // Of two sequences each rank runs all.
    Sequence other = model.start();
    const SequenceInput inputs[] = {{&sequence, few}, {&other, prompt}};
    model.prefill(inputs);
    keep();
    logits.push_back(copy(other.logits()));
    return logits;
  };
  Logits expected;
  {
    Model alone = Model::load(folder / "model.gguf", options);
    Sequence sequence = alone.start();
    expected = run(alone, sequence);
  }
  options.rank_split = RankSplit::kSequence;
  Logits first;
  std::vector<float> next;
  {
    RankedModel model(folder / "model.gguf", options, count);
    {
      Sequence sequence = model->start();
      first = run(*model, sequence);
      for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_LT(difference(first[i], expected[i]), bound) << count << " ranks, " << i;
      }
      sequence.save(folder / "session");
      model->step(sequence, 9);
      next = copy(sequence.logits());
    }
    {
      Sequence sequence = model->start();
      const Logits again = run(*model, sequence);
      for (std::size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(same_bits(again[i], first[i])) << i;
      // A session that comes to every rank.
      Sequence restored = model->start();
      restored.restore(folder / "session");
      model->step(restored, 9);
      EXPECT_TRUE(same_bits(restored.logits(), next));
      model->prefill(restored, more);
      EXPECT_EQ(restored.logits().size(), next.size());
    }
    EXPECT_TRUE(model.end().empty());
  }
  // One rank goes on with it too.
  options.rank_split = RankSplit::kTensor;
  Model alone = Model::load(folder / "model.gguf", options);
  Sequence sequence = alone.start();
  sequence.restore(folder / "session");
  alone.step(sequence, 9);
  EXPECT_LT(difference(copy(sequence.logits()), next), bound);
}

}  // namespace thalweg::model
