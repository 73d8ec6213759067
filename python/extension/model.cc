// Models. Calls of one model from several threads wait for each other, with the interpreter's lock released.

#include "thalweg/model.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "extension/bindings.h"
#include "thalweg/backend.h"
#include "thalweg/error.h"

namespace nb = nanobind;

namespace thalweg::python {
namespace {

using Tokens = std::vector<std::int32_t>;
using Logits = nb::ndarray<nb::numpy, float>;

// A NumPy array that owns a copy.
Logits to_numpy(std::vector<float>&& values, std::vector<std::size_t> shape) {
  auto* owned = new std::vector<float>(std::move(values));
  const nb::capsule owner(owned, [](void* memory) noexcept { delete static_cast<std::vector<float>*>(memory); });
  return {owned->data(), shape.size(), shape.data(), owner};
}

// Releases the model's lock before taking the interpreter's again, so that the two cannot deadlock.
class Exclusive {
 public:
  explicit Exclusive(std::mutex& mutex) : lock_(mutex) {}

 private:
  nb::gil_scoped_release release_;
  std::scoped_lock<std::mutex> lock_;
};

struct PyModel {
  std::shared_ptr<std::mutex> mutex = std::make_shared<std::mutex>();
  Model model;

  PyModel(std::shared_ptr<std::mutex> mutex_, Model model_) : mutex(std::move(mutex_)), model(std::move(model_)) {}
  PyModel(const PyModel&) = delete;
  PyModel& operator=(const PyModel&) = delete;
  ~PyModel() {
    const nb::gil_scoped_release release;  // the other ranks may have to be waited for
    const Model gone(std::move(model));
  }
};

struct PySequence {
  std::shared_ptr<std::mutex> mutex;
  Sequence sequence;

  PySequence(std::shared_ptr<std::mutex> mutex_, Sequence sequence_)
      : mutex(std::move(mutex_)), sequence(std::move(sequence_)) {}
  PySequence(PySequence&&) = default;
  PySequence& operator=(PySequence&&) = delete;
  ~PySequence() {
    if (!mutex) return;
    const std::scoped_lock lock(*mutex);  // frees its slot of the model
    sequence = Sequence();
  }
};

std::optional<DType> kv_dtype_of(const nb::object& kv_type) {
  if (kv_type.is_none()) return std::nullopt;
  if (nb::isinstance<nb::str>(kv_type)) {
    const auto name = nb::cast<std::string>(kv_type);
    if (name == "f16") return DType::kF16;
    if (name == "bf16") return DType::kBF16;
    if (name == "f32") return DType::kF32;
    if (name == "q8_0") return DType::kQ8_0;
  }
  throw Error("Model", "kv_type", "'f16', 'bf16', 'f32', 'q8_0' or None", nb::cast<std::string>(nb::repr(kv_type)));
}

DType state_dtype_of(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "bf16") return DType::kBF16;
  throw Error("Model", "state_type", "'f32' or 'bf16'", name);
}

DraftMode draft_mode_of(const std::string& name) {
  if (name == "off") return DraftMode::kOff;
  if (name == "lookup") return DraftMode::kLookup;
  if (name == "auto") return DraftMode::kAuto;
  if (name == "mtp") return DraftMode::kMtp;
  throw Error("Engine", "draft", "'off', 'lookup', 'mtp' or 'auto'", name);
}

nb::dict info_of(const PyModel& self) {
  const ModelInfo& info = self.model.info();
  nb::dict result;
  result["path"] = info.path;
  result["format"] = info.format;
  result["architecture"] = info.architecture;
  result["name"] = info.name;
  result["layers"] = info.layers.size();
  result["hidden"] = info.hidden;
  result["vocabulary"] = info.vocabulary;
  result["head_map"] = info.head_map;
  result["experts"] = info.experts;
  result["experts_used"] = info.experts_used;
  result["end_tokens"] = info.end_tokens;
  result["parameters"] = info.parameters;
  result["weight_bytes"] = info.weight_bytes;
  result["mtp_layers"] = info.mtp_layers;
  result["mtp_bytes"] = info.mtp_bytes;
  result["state_bytes"] = info.state_bytes;
  result["cache_token_bytes"] = info.cache_token_bytes;
  result["device"] = info.device;
  result["device_bytes"] = info.device_bytes;
  return result;
}

void bind_sequence(nb::module_& module) {
  nb::class_<PySequence>(module, "Sequence",
                         "One text with everything the model remembers of it; Model.start() makes it.")
      .def_prop_ro(
          "tokens",
          [](const PySequence& self) {
            const Exclusive exclusive(*self.mutex);
            return Tokens(self.sequence.tokens().begin(), self.sequence.tokens().end());
          },
          "The tokens so far, a list of int.")
      .def(
          "logits",
          [](const PySequence& self) {
            std::vector<float> copy;
            {
              const Exclusive exclusive(*self.mutex);
              copy.assign(self.sequence.logits().begin(), self.sequence.logits().end());
            }
            const std::size_t count = copy.size();
            return to_numpy(std::move(copy), {count});
          },
          "Logits of the next token, float32 [vocabulary]; empty before the first token. A copy.")
      .def(
          "clear",
          [](PySequence& self) {
            const Exclusive exclusive(*self.mutex);
            self.sequence.clear();
          },
          "Back to no tokens.")
      .def(
          "save",
          [](const PySequence& self, const std::string& path) {
            const Exclusive exclusive(*self.mutex);
            self.sequence.save(path);
          },
          nb::arg("path"), "Writes the whole state to a file.")
      .def(
          "restore",
          [](PySequence& self, const std::string& path) {
            const Exclusive exclusive(*self.mutex);
            self.sequence.restore(path);
          },
          nb::arg("path"),
          "Reads a state that save() wrote. What follows is bit-identical, with the same options on the same machine.\n"
          "A file that is damaged or of another model raises thalweg.Error; the sequence stays as it was.");
}

void bind_loading(nb::class_<PyModel>& model) {
  model
      .def(
          "__init__",
          [](PyModel* self, const std::string& path, int threads, std::int64_t context, int sequences,
             int prefill_chunk, bool exact, bool batch_invariant, bool prefetch, const nb::object& kv_type,
             const std::string& state_type, const std::string& device, const PyRanks* ranks,
             const std::string& rank_split) {
            ModelOptions options =
                model_options_of(threads, context, sequences, prefill_chunk, exact, batch_invariant, prefetch, kv_type,
                                 state_type, device, "off", ModelOptions().draft_max);
            set_ranks(options, ranks, rank_split, device);
            const nb::gil_scoped_release release;
            new (self) PyModel{std::make_shared<std::mutex>(), Model::load(path, options)};
          },
          nb::arg("path"), nb::kw_only(), nb::arg("threads") = 0, nb::arg("context") = 0, nb::arg("sequences") = 1,
          nb::arg("prefill_chunk") = 0, nb::arg("exact") = false, nb::arg("batch_invariant") = false,
          nb::arg("prefetch") = true, nb::arg("kv_type") = nb::none(), nb::arg("state_type") = "f32",
          nb::arg("device") = "auto", nb::arg("ranks") = nb::none(), nb::arg("rank_split") = "tensor",
          nb::sig("def __init__(self, path: str, *, threads: int = 0, context: int = 0, sequences: int = 1, "
                  "prefill_chunk: int = 0, exact: bool = False, batch_invariant: bool = False, prefetch: bool = True, "
                  "kv_type: typing.Literal['f16', 'bf16', 'f32', 'q8_0'] | None = None, "
                  "state_type: typing.Literal['f32', 'bf16'] = 'f32', device: str = 'auto', "
                  "ranks: Ranks | None = None, rank_split: typing.Literal['tensor', 'sequence'] = 'tensor') -> None"))
      .def_prop_ro("info", &info_of, "What the file says, a dict.")
      .def_prop_ro(
          "context", [](const PyModel& self) { return self.model.context(); }, "Most tokens of a sequence.");
}

void bind_text(nb::class_<PyModel>& model) {
  model
      .def(
          "tokenize",
          [](const PyModel& self, const std::string& text, bool parse_special) {
            return self.model.tokenize(text, parse_special);
          },
          nb::arg("text"), nb::arg("parse_special") = true, "The tokens of a text, a list of int.")
      .def(
          "token_bytes",
          [](const PyModel& self, std::int32_t token) {
            const std::string bytes = self.model.token_bytes(token);
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("token"), "The bytes of a token, which may be an incomplete character.")
      .def(
          "chat_prompt",
          [](const PyModel& self, const std::vector<std::pair<std::string, std::string>>& messages,
             std::optional<bool> think) {
            std::vector<ChatMessage> conversation;
            for (const auto& [role, content] : messages) conversation.push_back({role, content});
            return self.model.chat_prompt(conversation, {.think = think}).tokens;
          },
          nb::arg("messages"), nb::arg("think") = nb::none(),
          "Tokens of a conversation, a list of (role, content), in the model's chat format.")
      .def(
          "is_end_token", [](const PyModel& self, std::int32_t token) { return self.model.is_end_token(token); },
          nb::arg("token"), "Whether the token ends a text.");
}

// Sequences, and tokens that run through the model.
void bind_steps(nb::class_<PyModel>& model) {
  model
      .def(
          "start",
          [](PyModel& self) {
            const Exclusive exclusive(*self.mutex);
            return PySequence(self.mutex, self.model.start());
          },
          "An empty Sequence. At most `sequences` of the constructor are alive at once.")
      .def(
          "prefill",
          [](PyModel& self, PySequence& sequence, const Tokens& tokens) {
            const Exclusive exclusive(*self.mutex);
            self.model.prefill(sequence.sequence, tokens);
          },
          nb::arg("sequence"), nb::arg("tokens"), "Runs new tokens through the model.")
      .def(
          "step",
          [](PyModel& self, const std::vector<PySequence*>& sequences, const Tokens& tokens) {
            if (std::find(sequences.begin(), sequences.end(), nullptr) != sequences.end()) {
              throw Error("step", "sequences", "a list of Sequence", "None");
            }
            const Exclusive exclusive(*self.mutex);
            std::vector<Sequence*> batch;
            for (PySequence* sequence : sequences) batch.push_back(&sequence->sequence);
            self.model.step(batch, tokens);
          },
          nb::arg("sequences"), nb::arg("tokens"), "One token for each of the sequences.")
      .def(
          "follow",
          [](PyModel& self) {
            const Exclusive exclusive(*self.mutex);
            self.model.follow();
          },
          "On a rank above 0, instead of everything but info and what is about text: does what rank 0 does, until "
          "rank\n"
          "0's model, with its sequences, or its engine is gone. Raises thalweg.Error when a rank is lost.");
}

// What the model says about the tokens that follow.
void bind_predictions(nb::class_<PyModel>& model) {
  model
      .def(
          "score",
          [](PyModel& self, PySequence& sequence, const Tokens& tokens) {
            const Exclusive exclusive(*self.mutex);
            return self.model.score(sequence.sequence, tokens);
          },
          nb::arg("sequence"), nb::arg("tokens"),
          "ln p(tokens[i + 1] | everything up to tokens[i]) for each i but the last.")
      .def(
          "logits",
          [](PyModel& self, PySequence& sequence, const Tokens& tokens) {
            std::vector<float> all;
            {
              const Exclusive exclusive(*self.mutex);
              self.model.prefill_each(sequence.sequence, tokens, [&](std::int64_t, std::span<const float> logits) {
                all.insert(all.end(), logits.begin(), logits.end());
              });
            }
            return to_numpy(std::move(all), {tokens.size(), static_cast<std::size_t>(self.model.info().vocabulary)});
          },
          nb::arg("sequence"), nb::arg("tokens"),
          "Prefills the tokens; the logits after each of them, float32 [len(tokens), vocabulary].")
      .def(
          "sample",
          [](PyModel& self, const PySequence& sequence, float temperature, int top_k, float top_p, float min_p,
             float repeat_penalty, int repeat_last, std::uint64_t seed) {
            const Exclusive exclusive(*self.mutex);
            return self.model.sample(sequence.sequence,
                                     {temperature, top_k, top_p, min_p, repeat_penalty, repeat_last, seed});
          },
          nb::arg("sequence"), nb::kw_only(), nb::arg("temperature") = 0.0F, nb::arg("top_k") = 0,
          nb::arg("top_p") = 1.0F, nb::arg("min_p") = 0.0F, nb::arg("repeat_penalty") = 1.0F,
          nb::arg("repeat_last") = 64, nb::arg("seed") = 0, "The token that is chosen next; by default the likeliest.");
}

}  // namespace

ModelOptions model_options_of(int threads, std::int64_t context, int sequences, int prefill_chunk, bool exact,
                              bool batch_invariant, bool prefetch, const nb::object& kv_type,
                              const std::string& state_type, const std::string& device, const std::string& draft,
                              int draft_max) {
  ModelOptions options;
  options.threads = threads;
  options.context = context;
  options.sequences = sequences;
  options.prefill_chunk = prefill_chunk;
  options.exact = exact;
  options.batch_invariant = batch_invariant;
  options.prefetch = prefetch;
  options.kv_dtype = kv_dtype_of(kv_type);
  options.state_dtype = state_dtype_of(state_type);
  options.device = device_from_name(device);
  options.draft = draft_mode_of(draft);
  options.draft_max = draft_max;
  return options;
}

void bind_model(nb::module_& module) {
  bind_sequence(module);
  nb::class_<PyModel> model(module, "Model");
  bind_loading(model);
  bind_text(model);
  bind_steps(model);
  bind_predictions(model);
}

}  // namespace thalweg::python
