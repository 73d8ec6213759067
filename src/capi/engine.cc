// Engines of the C ABI.

#include "thalweg/engine.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/errors.h"
#include "capi/model_handle.h"
#include "capi/sized.h"

using namespace thalweg::capi;

struct thalweg_engine {
  thalweg_engine(thalweg::Model&& model, const thalweg::EngineOptions& options) : engine(std::move(model), options) {}
  thalweg::Engine engine;
};

struct thalweg_answer {
  thalweg::TokenStream stream;
  thalweg::Output output;  // what the last thalweg_output points to
  std::vector<double> logprobs;
  std::vector<std::int32_t> likeliest_tokens;
  std::vector<double> likeliest_logprobs;
  bool wants_logprobs = false;
};

static_assert(THALWEG_FINISH_END_TOKEN == static_cast<int>(thalweg::FinishReason::kEndToken));
static_assert(THALWEG_FINISH_STOP == static_cast<int>(thalweg::FinishReason::kStop));
static_assert(THALWEG_FINISH_LENGTH == static_cast<int>(thalweg::FinishReason::kLength));
static_assert(THALWEG_FINISH_CANCELLED == static_cast<int>(thalweg::FinishReason::kCancelled));
static_assert(THALWEG_FINISH_ERROR == static_cast<int>(thalweg::FinishReason::kError));

namespace {

thalweg::Request request_of(const thalweg_request& from) {
  thalweg::Request request;
  const auto prompt = tokens_of(from.prompt, from.prompt_count, "submit");
  request.prompt.assign(prompt.begin(), prompt.end());
  if (from.boundary_count > 0) {
    require_pointer(from.boundaries, "submit", "boundaries");
    request.boundaries.assign(from.boundaries, from.boundaries + from.boundary_count);
  }
  request.sampling = sampling_of(from.sampling, "submit");
  request.max_tokens = from.max_tokens;
  if (from.stop_count > 0) require_pointer(from.stop, "submit", "stop");
  for (size_t i = 0; i < from.stop_count; ++i) {
    require_pointer(from.stop[i], "submit", "stop");
    request.stop.emplace_back(from.stop[i]);
  }
  if (from.logprobs != -1) request.logprobs = from.logprobs;
  request.ignore_end = from.ignore_end;
  return request;
}

void flatten_logprobs(thalweg_answer& answer) {
  answer.logprobs.clear();
  answer.likeliest_tokens.clear();
  answer.likeliest_logprobs.clear();
  for (const thalweg::TokenLogprobs& of_token : answer.output.logprobs) {
    answer.logprobs.push_back(of_token.chosen.logprob);
    for (const thalweg::TokenLogprobs::Entry& entry : of_token.likeliest) {
      answer.likeliest_tokens.push_back(entry.token);
      answer.likeliest_logprobs.push_back(entry.logprob);
    }
  }
}

}  // namespace

namespace thalweg::capi {

THALWEG_NAME_OF(engine_options);
THALWEG_NAME_OF(request);
THALWEG_NAME_OF(output);
THALWEG_NAME_OF(engine_counts);

static thalweg_engine_options engine_options_defaults() {
  const EngineOptions defaults;
  return {.struct_size = sizeof(thalweg_engine_options),
          .queue = defaults.queue,
          .cache_bytes = defaults.cache_bytes,
          .cache_dir = nullptr,
          .cache_dir_bytes = defaults.cache_dir_bytes,
          .prompt_share = defaults.prompt_share,
          .cache_answers = defaults.cache_answers,
          .cache_device_bytes = defaults.cache_device_bytes};
}

static thalweg_request request_defaults() {
  thalweg_request request{};
  request.struct_size = sizeof(request);
  request.max_tokens = -1;
  request.logprobs = -1;
  return request;
}

}  // namespace thalweg::capi

void thalweg_engine_options_init_sized(thalweg_engine_options* options, size_t size) {
  init_sized(engine_options_defaults(), options, size);
}
void thalweg_request_init_sized(thalweg_request* request, size_t size) {
  init_sized(request_defaults(), request, size);
}
void thalweg_output_init_sized(thalweg_output* output, size_t size) { init_sized(thalweg_output{}, output, size); }
void thalweg_engine_counts_init_sized(thalweg_engine_counts* counts, size_t size) {
  init_sized(thalweg_engine_counts{}, counts, size);
}

thalweg_status thalweg_engine_create(thalweg_model* model, const thalweg_engine_options* options,
                                     thalweg_engine** engine) {
  return guarded([&] {
    require_pointer(engine, "engine_create", "engine");
    thalweg::Model& own = own_model(model, "engine_create");
    thalweg::EngineOptions wanted;
    if (options != nullptr) {
      const thalweg_engine_options given = read_sized(options, engine_options_defaults(), "engine_create", "options");
      wanted.queue = given.queue;
      wanted.cache_bytes = given.cache_bytes;
      if (given.cache_dir != nullptr) wanted.cache_dir = given.cache_dir;
      wanted.cache_dir_bytes = given.cache_dir_bytes;
      wanted.prompt_share = given.prompt_share;
      wanted.cache_answers = given.cache_answers;
      wanted.cache_device_bytes = given.cache_device_bytes;
    }
    auto created = std::make_unique<thalweg_engine>(std::move(own), wanted);
    model->own.reset();
    model->text = &created->engine.model();
    *engine = created.release();
  });
}

void thalweg_engine_free(thalweg_engine* engine) { delete engine; }

thalweg_status thalweg_engine_drain(thalweg_engine* engine, double seconds, bool* finished) {
  return guarded([&] {
    require_pointer(engine, "engine_drain", "engine");
    const bool all = engine->engine.drain(seconds);
    if (finished != nullptr) *finished = all;
  });
}

thalweg_status thalweg_engine_count(const thalweg_engine* engine, thalweg_engine_counts* counts) {
  return guarded([&] {
    require_pointer(engine, "engine_count", "engine");
    const thalweg::EngineStats stats = engine->engine.stats();
    const thalweg_engine_counts result = {.struct_size = sizeof(thalweg_engine_counts),
                                          .waiting = stats.waiting,
                                          .running = stats.running,
                                          .requests = stats.requests,
                                          .refused = stats.refused,
                                          .finished = stats.finished,
                                          .cancelled = stats.cancelled,
                                          .failed = stats.failed,
                                          .prompt_tokens = stats.prompt_tokens,
                                          .prompt_tokens_cached = stats.prompt_tokens_cached,
                                          .prompt_tokens_computed = stats.prompt_tokens_computed,
                                          .generated_tokens = stats.generated_tokens,
                                          .cache_bytes = stats.cache_bytes,
                                          .cache_checkpoints = stats.cache_checkpoints,
                                          .cache_dir_bytes = stats.cache_dir_bytes,
                                          .cache_dir_checkpoints = stats.cache_dir_checkpoints,
                                          .cache_device_bytes = stats.cache_device_bytes};
    write_sized(result, counts, "engine_count", "counts");
  });
}

thalweg_status thalweg_submit(thalweg_engine* engine, const thalweg_request* request, thalweg_answer** answer) {
  return guarded([&] {
    require_pointer(engine, "submit", "engine");
    require_pointer(answer, "submit", "answer");
    const thalweg_request given = read_sized(request, request_defaults(), "submit", "request");
    auto created = std::make_unique<thalweg_answer>();
    created->wants_logprobs = given.logprobs != -1;
    created->stream = engine->engine.stream(request_of(given));
    *answer = created.release();
  });
}

thalweg_status thalweg_answer_next(thalweg_answer* answer, thalweg_output* output, bool* more) {
  return guarded([&] {
    require_pointer(answer, "answer_next", "answer");
    require_pointer(more, "answer_next", "more");
    read_sized(output, thalweg_output{}, "answer_next", "output");  // before anything is taken
    *more = answer->stream.next(answer->output);
    if (!*more) return;
    flatten_logprobs(*answer);
    const thalweg::Output& from = answer->output;
    const thalweg_output result = {
        .struct_size = sizeof(thalweg_output),
        .text = from.text.data(),
        .text_size = from.text.size(),
        .tokens = from.tokens.data(),
        .token_count = from.tokens.size(),
        .logprobs = answer->wants_logprobs ? answer->logprobs.data() : nullptr,
        .likeliest_tokens = answer->wants_logprobs ? answer->likeliest_tokens.data() : nullptr,
        .likeliest_logprobs = answer->wants_logprobs ? answer->likeliest_logprobs.data() : nullptr,
        .finish = from.finish ? static_cast<int32_t>(*from.finish) : THALWEG_FINISH_NONE,
        .error = from.error.c_str(),
        .prompt_tokens = from.usage.prompt_tokens,
        .cached_tokens = from.usage.cached_tokens,
        .generated_tokens = from.usage.generated_tokens,
        .queue_seconds = from.usage.queue_seconds,
        .prompt_seconds = from.usage.prompt_seconds,
        .generation_seconds = from.usage.generation_seconds};
    write_sized(result, output, "answer_next", "output");
  });
}

thalweg_status thalweg_answer_cancel(thalweg_answer* answer) {
  return guarded([&] {
    require_pointer(answer, "answer_cancel", "answer");
    answer->stream.cancel();
  });
}

void thalweg_answer_free(thalweg_answer* answer) { delete answer; }
