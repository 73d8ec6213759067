#pragma once

// A model that several ranks of this process run together, each in a thread of its own.

#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "model/support.h"
#include "model/tiny_model.h"
#include "thalweg/ranks.h"

namespace thalweg::model {

class RankedModel {
 public:
  // `ranks`: other than threads; by rank.
  RankedModel(const std::string& path, const ModelOptions& options, std::vector<std::shared_ptr<Ranks>> ranks)
      : ranks_(std::move(ranks)) {
    for (std::size_t r = 1; r < ranks_.size(); ++r) {
      threads_.emplace_back([this, path, options, r] {
        try {
          ModelOptions mine = options;
          mine.ranks = ranks_[r];
          if (mine.device && mine.device->type != DeviceType::kCpu) mine.device->index = static_cast<int>(r);
          Model model = Model::load(path, mine);
          model.follow();
        } catch (const Error& error) {
          const std::lock_guard lock(mutex_);
          errors_.emplace_back(error.what());
        }
        ranks_[r].reset();
      });
    }
    ModelOptions mine = options;
    mine.ranks = ranks_[0];
    try {
      model_.emplace(Model::load(path, mine));
    } catch (...) {
      end();
      throw;
    }
  }
  RankedModel(const std::string& path, const ModelOptions& options, int count)
      : RankedModel(path, options, Ranks::in_process(count, 20)) {}
  ~RankedModel() { end(); }
  RankedModel(const RankedModel&) = delete;
  RankedModel& operator=(const RankedModel&) = delete;

  Model& operator*() { return *model_; }
  Model* operator->() { return &*model_; }
  Model take() { return std::move(*model_); }

  // Waits for the other ranks, and returns what they threw.
  std::vector<std::string> end() {
    model_.reset();
    ranks_[0].reset();
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
    return errors_;
  }

 private:
  std::vector<std::shared_ptr<Ranks>> ranks_;
  std::optional<Model> model_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::vector<std::string> errors_;
};

// A session of `count` ranks goes on with the same bits, in the same process and in another model. Leaves it as
// "session" beside "model.gguf", whose vocabulary has 101 tokens or more; options: two sequences.
inline void expect_sessions_of_all_ranks(const TempFolder& folder, const ModelOptions& options, int count) {
  std::vector<float> expected;
  {
    RankedModel model(folder / "model.gguf", options, count);
    Sequence sequence = model->start();
    model->prefill(sequence, random_tokens(50, 101, 4));
    sequence.save(folder / "session");
    Sequence other = model->start();
    other.restore(folder / "session");
    model->step(sequence, 5);
    model->step(other, 5);
    expected = copy(sequence.logits());
    EXPECT_TRUE(same_bits(other.logits(), expected));
  }
  RankedModel again(folder / "model.gguf", options, count);
  Sequence other = again->start();
  Sequence sequence = again->start();
  sequence.restore(folder / "session");
  // Makes caches on the host grow, and so move, with the restored one in them.
  again->prefill(other, random_tokens(700, 101, 8));
  again->step(sequence, 5);
  EXPECT_TRUE(same_bits(sequence.logits(), expected));
}

}  // namespace thalweg::model
