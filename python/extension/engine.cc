// Engines. Nothing here holds the interpreter's lock while it waits, and the engine's thread never takes it.

#include "thalweg/engine.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "extension/bindings.h"

namespace nb = nanobind;

namespace thalweg::python {
namespace {

using Tokens = std::vector<std::int32_t>;

struct PyEngine {
  std::shared_ptr<Engine> engine;
};

// Keeps the engine alive: a stream must not outlive it.
struct PyTokenStream {
  std::shared_ptr<Engine> engine;
  std::unique_ptr<TokenStream> stream;
};

nb::dict dict_of(const Usage& usage) {
  nb::dict result;
  result["prompt_tokens"] = usage.prompt_tokens;
  result["cached_tokens"] = usage.cached_tokens;
  result["generated_tokens"] = usage.generated_tokens;
  result["queue_seconds"] = usage.queue_seconds;
  result["prompt_seconds"] = usage.prompt_seconds;
  result["generation_seconds"] = usage.generation_seconds;
  return result;
}

nb::dict dict_of(const EngineStats& stats) {
  nb::dict result;
  result["waiting"] = stats.waiting;
  result["running"] = stats.running;
  result["requests"] = stats.requests;
  result["refused"] = stats.refused;
  result["finished"] = stats.finished;
  result["cancelled"] = stats.cancelled;
  result["failed"] = stats.failed;
  result["prompt_tokens"] = stats.prompt_tokens;
  result["prompt_tokens_cached"] = stats.prompt_tokens_cached;
  result["prompt_tokens_computed"] = stats.prompt_tokens_computed;
  result["generated_tokens"] = stats.generated_tokens;
  result["steps"] = stats.steps;
  result["step_sequences"] = stats.step_sequences;
  result["step_seconds"] = stats.step_seconds;
  result["bookkeeping_seconds"] = stats.bookkeeping_seconds;
  result["cache_bytes"] = stats.cache_bytes;
  result["cache_device_bytes"] = stats.cache_device_bytes;
  result["cache_dir_bytes"] = stats.cache_dir_bytes;
  result["cache_dir_checkpoints"] = stats.cache_dir_checkpoints;
  result["cache_dir_evictions"] = stats.cache_dir_evictions;
  result["cache_dir_tokens"] = stats.cache_dir_tokens;
  result["cache_dir_failures"] = stats.cache_dir_failures;
  result["cache_checkpoints"] = stats.cache_checkpoints;
  result["cache_evictions"] = stats.cache_evictions;
  return result;
}

nb::list list_of(const std::vector<TokenLogprobs>& logprobs) {
  const auto pair = [](const TokenLogprobs::Entry& entry) { return nb::make_tuple(entry.token, entry.logprob); };
  nb::list result;
  for (const TokenLogprobs& of_token : logprobs) {
    nb::list likeliest;
    for (const TokenLogprobs::Entry& entry : of_token.likeliest) likeliest.append(pair(entry));
    result.append(nb::make_tuple(pair(of_token.chosen), likeliest));
  }
  return result;
}

// None after the last output.
nb::object next(PyTokenStream& self) {
  Output output;
  bool any = false;
  {
    const nb::gil_scoped_release release;
    any = self.stream->next(output);
  }
  if (!any) return nb::none();
  nb::dict result;
  result["text"] = output.text;
  result["tokens"] = output.tokens;
  result["logprobs"] = list_of(output.logprobs);
  result["finish"] = output.finish ? nb::object(nb::str(name(*output.finish).data())) : nb::none();
  result["error"] = output.error;
  result["usage"] = dict_of(output.usage);
  return result;
}

PyTokenStream submit(PyEngine& self, const Tokens& prompt, std::int64_t max_tokens,
                     const std::vector<std::string>& stop, std::optional<int> logprobs, bool ignore_end,
                     const std::vector<std::int64_t>& boundaries, float temperature, int top_k, float top_p,
                     float min_p, float repeat_penalty, int repeat_last, std::uint64_t seed) {
  Request request;
  request.prompt = prompt;
  request.max_tokens = max_tokens;
  request.stop = stop;
  request.logprobs = logprobs;
  request.ignore_end = ignore_end;
  request.boundaries = boundaries;
  request.sampling = {temperature, top_k, top_p, min_p, repeat_penalty, repeat_last, seed};
  const nb::gil_scoped_release release;
  return {self.engine, std::make_unique<TokenStream>(self.engine->stream(std::move(request)))};
}

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<PyTokenStream>(module, "TokenStream", "The outputs of one request.")
      .def("next", &next, "Waits for an output, a dict; None after the last.")
      .def(
          "cancel", [](PyTokenStream& self) { self.stream->cancel(); }, "Ends the request within a step.");

  nb::class_<PyEngine>(module, "Engine")
      .def(
          "__init__",
          [](PyEngine* self, const std::string& path, int queue, std::uint64_t cache_bytes,
             std::int64_t cache_device_bytes, const std::string& cache_dir, std::uint64_t cache_dir_bytes,
             double prompt_share, bool cache_answers, int threads, std::int64_t context, int sequences,
             int prefill_chunk, bool exact, bool batch_invariant, bool prefetch, const nb::object& kv_type,
             const std::string& state_type, const std::string& device, const std::string& draft, int draft_max,
             const PyRanks* ranks, const std::string& rank_split) {
            ModelOptions options = model_options_of(threads, context, sequences, prefill_chunk, exact, batch_invariant,
                                                    prefetch, kv_type, state_type, device, draft, draft_max);
            set_ranks(options, ranks, rank_split, device);
            if (ranks != nullptr && ranks->connected->rank() > 0) {
              throw Error("Engine", "ranks", "rank 0, which leads",
                          "rank " + std::to_string(ranks->connected->rank()) + ", for a Model that follows");
            }
            const nb::gil_scoped_release release;
            new (self) PyEngine{std::make_shared<Engine>(
                Model::load(path, options), EngineOptions{queue, cache_bytes, cache_device_bytes, cache_dir,
                                                          cache_dir_bytes, prompt_share, cache_answers})};
          },
          nb::arg("path"), nb::kw_only(), nb::arg("queue") = 256, nb::arg("cache_bytes") = std::uint64_t{1} << 30,
          nb::arg("cache_device_bytes") = -1, nb::arg("cache_dir") = "",
          nb::arg("cache_dir_bytes") = std::uint64_t{16} << 30, nb::arg("prompt_share") = 0.3,
          nb::arg("cache_answers") = false, nb::arg("threads") = 0, nb::arg("context") = 0, nb::arg("sequences") = 8,
          nb::arg("prefill_chunk") = 0, nb::arg("exact") = false, nb::arg("batch_invariant") = false,
          nb::arg("prefetch") = true, nb::arg("kv_type") = nb::none(), nb::arg("state_type") = "f32",
          nb::arg("device") = "auto", nb::arg("draft") = "off", nb::arg("draft_max") = ModelOptions().draft_max,
          nb::arg("ranks") = nb::none(), nb::arg("rank_split") = "tensor",
          nb::sig("def __init__(self, path: str, *, queue: int = 256, cache_bytes: int = 1073741824, "
                  "cache_device_bytes: int = -1, cache_dir: str = '', cache_dir_bytes: int = 17179869184, "
                  "prompt_share: float = 0.3, "
                  "cache_answers: bool = False, threads: int = 0, context: int = 0, sequences: int = 8, "
                  "prefill_chunk: int = 0, exact: bool = False, batch_invariant: bool = False, prefetch: bool = True, "
                  "kv_type: typing.Literal['f16', 'bf16', 'f32', 'q8_0'] | None = None, "
                  "state_type: typing.Literal['f32', 'bf16'] = 'f32', device: str = 'auto', "
                  "draft: typing.Literal['off', 'lookup', 'mtp', 'auto'] = 'off', draft_max: int = 8, "
                  "ranks: Ranks | None = None, rank_split: typing.Literal['tensor', 'sequence'] = 'tensor') -> None"))
      .def_prop_ro(
          "context", [](const PyEngine& self) { return self.engine->model().context(); }, "Most tokens of a request.")
      .def(
          "tokenize",
          [](const PyEngine& self, const std::string& text, bool parse_special) {
            return self.engine->model().tokenize(text, parse_special);
          },
          nb::arg("text"), nb::arg("parse_special") = true, "The tokens of a text, a list of int.")
      .def(
          "token_bytes",
          [](const PyEngine& self, std::int32_t token) {
            const std::string bytes = self.engine->model().token_bytes(token);
            return nb::bytes(bytes.data(), bytes.size());
          },
          nb::arg("token"), "The bytes of a token, which may be an incomplete character.")
      .def(
          "chat_prompt",
          [](const PyEngine& self, const std::vector<std::pair<std::string, std::string>>& messages,
             std::optional<bool> think) {
            std::vector<ChatMessage> conversation;
            for (const auto& [role, content] : messages) conversation.push_back({role, content});
            return self.engine->model().chat_prompt(conversation, {.think = think}).tokens;
          },
          nb::arg("messages"), nb::arg("think") = nb::none(),
          "Tokens of a conversation, a list of (role, content), in the model's chat format.")
      .def("submit", &submit, nb::arg("prompt"), nb::kw_only(), nb::arg("max_tokens") = 128,
           nb::arg("stop") = std::vector<std::string>(), nb::arg("logprobs") = nb::none(),
           nb::arg("ignore_end") = false, nb::arg("boundaries") = std::vector<std::int64_t>(),
           nb::arg("temperature") = 0.0F, nb::arg("top_k") = 0, nb::arg("top_p") = 1.0F, nb::arg("min_p") = 0.0F,
           nb::arg("repeat_penalty") = 1.0F, nb::arg("repeat_last") = 64, nb::arg("seed") = 0,
           "Starts a request for a list of tokens; raises thalweg.Error if it cannot run, or the queue is full.")
      .def(
          "drain",
          [](PyEngine& self, double seconds) {
            const nb::gil_scoped_release release;
            return self.engine->drain(seconds);
          },
          nb::arg("seconds"),
          "Refuses further requests and waits for the others, which are cancelled after so many seconds. Returns\n"
          "whether all finished by themselves.")
      .def(
          "stats", [](const PyEngine& self) { return dict_of(self.engine->stats()); },
          "Counters since the start, and what runs and waits now: a dict.");
}

}  // namespace thalweg::python
