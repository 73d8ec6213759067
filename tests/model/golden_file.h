#pragma once

#include <set>
#include <span>
#include <string>

#include "io/safetensors.h"
#include "model/support.h"

namespace thalweg::model {

// The results of another implementation: prompt.<n>.ids, .logits after the last of them, .greedy, and .margin, the lead
// of the best logit at each greedy step.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) : file_(path) {}

  const io::SafetensorsFile& file() const { return file_; }
  std::span<const std::int32_t> ids(const std::string& name) const { return values<std::int32_t>(name); }
  std::span<const float> numbers(const std::string& name) const { return values<float>(name); }

  // "prompt.<n>" for each n there is.
  std::set<std::string> prompts() const {
    std::set<std::string> found;
    for (const std::string& name : file_.names()) {
      if (name.starts_with("prompt.") && name.ends_with(".ids")) found.insert(name.substr(0, name.size() - 4));
    }
    return found;
  }

 private:
  template <class T>
  std::span<const T> values(const std::string& name) const {
    const ConstTensor tensor = file_.tensor(name);
    return {static_cast<const T*>(tensor.data), static_cast<std::size_t>(tensor.size())};
  }

  io::SafetensorsFile file_;
};

inline double range(std::span<const float> logits) {
  const auto [least, most] = std::minmax_element(logits.begin(), logits.end());
  return static_cast<double>(*most) - static_cast<double>(*least);
}

// Greedy decoding takes the same tokens up to the first step at which the best logit led by less than `clear` times the
// range of the logits. `sequence` holds the prompt. Returns the number of steps compared.
inline int compare_greedy(Model& model, Sequence& sequence, const GoldenFile& goldens, const std::string& prompt,
                          double clear) {
  const std::span<const std::int32_t> greedy = goldens.ids(prompt + ".greedy");
  const std::span<const float> margins = goldens.numbers(prompt + ".margin");
  EXPECT_EQ(greedy.size(), 20U);
  EXPECT_EQ(margins.size(), greedy.size());
  for (std::size_t i = 0; i < greedy.size(); ++i) {
    if (static_cast<double>(margins[i]) < clear * range(sequence.logits())) return static_cast<int>(i);
    EXPECT_EQ(model.sample(sequence, {}), greedy[i]) << "step " << i;
    model.step(sequence, greedy[i]);
  }
  return static_cast<int>(greedy.size());
}

}  // namespace thalweg::model
