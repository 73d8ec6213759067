// Models of the C ABI.

#include "thalweg/model.h"

#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/convert.h"
#include "capi/copy_out.h"
#include "capi/errors.h"
#include "capi/model_handle.h"
#include "capi/ranks_handle.h"

using namespace thalweg::capi;

struct thalweg_sequence {
  thalweg::Sequence sequence;
};

static_assert(THALWEG_STOP_END_TOKEN == static_cast<int>(thalweg::StopReason::kEndToken));
static_assert(THALWEG_STOP_LENGTH == static_cast<int>(thalweg::StopReason::kLength));
static_assert(THALWEG_STOP_CONTEXT == static_cast<int>(thalweg::StopReason::kContext));
static_assert(THALWEG_DRAFT_MTP == static_cast<int>(thalweg::DraftMode::kMtp));
static_assert(THALWEG_STOP_CALLER == static_cast<int>(thalweg::StopReason::kCaller));

namespace thalweg::capi {

THALWEG_NAME_OF(model_options);
THALWEG_NAME_OF(sampling);
THALWEG_NAME_OF(generated);

static thalweg_sampling sampling_defaults() {
  const Sampling defaults;
  return {sizeof(thalweg_sampling), defaults.temperature,    defaults.top_k,       defaults.top_p,
          defaults.min_p,           defaults.repeat_penalty, defaults.repeat_last, defaults.seed};
}

Sampling sampling_of(const thalweg_sampling* given, const char* function) {
  if (given == nullptr) return {};
  const thalweg_sampling from = read_sized(given, sampling_defaults(), function, "sampling");
  return {from.temperature, from.top_k, from.top_p, from.min_p, from.repeat_penalty, from.repeat_last, from.seed};
}

static thalweg_model_options model_options_defaults() {
  const ModelOptions defaults;
  return {.struct_size = sizeof(thalweg_model_options),
          .threads = defaults.threads,
          .context = defaults.context,
          .sequences = defaults.sequences,
          .prefill_chunk = defaults.prefill_chunk,
          .exact = defaults.exact,
          .kv_dtype = THALWEG_DEFAULT_DTYPE,
          .state_dtype = THALWEG_F32,
          .device_type = THALWEG_DEFAULT_DEVICE,
          .device_index = 0,
          .prefetch = defaults.prefetch,
          .progress = nullptr,
          .user = nullptr,
          .pool = nullptr,
          .draft = THALWEG_DRAFT_OFF,
          .draft_max = defaults.draft_max,
          .ranks = nullptr,
          .rank_split = THALWEG_SPLIT_TENSOR,
          .batch_invariant = defaults.batch_invariant ? 1 : 0};
}

static ModelOptions options_of(const thalweg_model_options& given) {
  ModelOptions wanted;
  wanted.threads = given.threads;
  wanted.context = given.context;
  wanted.sequences = given.sequences;
  wanted.prefill_chunk = given.prefill_chunk;
  wanted.exact = given.exact;
  if (given.kv_dtype != THALWEG_DEFAULT_DTYPE)
    wanted.kv_dtype = enum_of<DType>(given.kv_dtype, "model_load", "kv_dtype");
  wanted.state_dtype = enum_of<DType>(given.state_dtype, "model_load", "state_dtype");
  if (given.device_type != THALWEG_DEFAULT_DEVICE) {
    wanted.device = Device{enum_of<DeviceType>(given.device_type, "model_load", "device_type"), given.device_index};
  }
  if (given.draft < THALWEG_DRAFT_OFF || given.draft > THALWEG_DRAFT_MTP) {
    throw Error("model_load", "draft", "a thalweg_draft_mode", std::to_string(given.draft));
  }
  wanted.draft = static_cast<DraftMode>(given.draft);
  wanted.draft_max = given.draft_max;
  if (given.ranks != nullptr) wanted.ranks = given.ranks->connected;
  wanted.rank_split = enum_of<RankSplit>(given.rank_split, "model_load", "rank_split");
  wanted.batch_invariant = given.batch_invariant != 0;
  wanted.prefetch = given.prefetch;
  if (given.progress != nullptr) {
    wanted.progress = [progress = given.progress, user = given.user](double done) { progress(user, done); };
  }
  if (given.pool != nullptr) {
    require_pointer(reinterpret_cast<const void*>(given.pool->run), "model_load", "pool.run");
    wanted.pool = {given.pool->run, given.pool->user};
  }
  return wanted;
}

}  // namespace thalweg::capi

void thalweg_model_options_init_sized(thalweg_model_options* options, size_t size) {
  init_sized(model_options_defaults(), options, size);
}
void thalweg_sampling_init_sized(thalweg_sampling* sampling, size_t size) {
  init_sized(sampling_defaults(), sampling, size);
}
void thalweg_generated_init_sized(thalweg_generated* generated, size_t size) {
  init_sized(thalweg_generated{}, generated, size);
}

thalweg_status thalweg_model_load(const char* path, const thalweg_model_options* options, thalweg_model** model) {
  return guarded([&] {
    require_pointer(path, "model_load", "path");
    require_pointer(model, "model_load", "model");
    auto handle = std::make_unique<thalweg_model>();
    const thalweg_model_options defaults = model_options_defaults();
    const thalweg_model_options given =
        options != nullptr ? read_sized(options, defaults, "model_load", "options") : defaults;
    handle->own = thalweg::Model::load(path, options_of(given));
    handle->text = &*handle->own;
    *model = handle.release();
  });
}

void thalweg_model_free(thalweg_model* model) { delete model; }
int64_t thalweg_model_vocabulary(const thalweg_model* model) { return model->text->info().vocabulary; }
int64_t thalweg_model_context(const thalweg_model* model) { return model->text->context(); }
const char* thalweg_model_architecture(const thalweg_model* model) { return model->text->info().architecture.c_str(); }
bool thalweg_model_is_end_token(const thalweg_model* model, int32_t token) { return model->text->is_end_token(token); }

thalweg_status thalweg_tokenize(const thalweg_model* model, const char* text, size_t length, bool parse_special,
                                int32_t* tokens, size_t capacity, size_t* count) {
  return guarded([&] {
    require_pointer(model, "tokenize", "model");
    if (length > 0) require_pointer(text, "tokenize", "text");
    copy_out(model->text->tokenize(std::string_view(text, length), parse_special), tokens, capacity, count, "tokenize");
  });
}

thalweg_status thalweg_detokenize(const thalweg_model* model, const int32_t* tokens, size_t token_count, char* text,
                                  size_t capacity, size_t* count) {
  return guarded([&] {
    require_pointer(model, "detokenize", "model");
    copy_out(model->text->detokenize(tokens_of(tokens, token_count, "detokenize")), text, capacity, count,
             "detokenize");
  });
}

thalweg_status thalweg_chat_prompt(const thalweg_model* model, const thalweg_chat_message* messages,
                                   size_t message_count, int32_t think, int32_t* tokens, size_t capacity,
                                   size_t* count) {
  return guarded([&] {
    require_pointer(model, "chat_prompt", "model");
    if (message_count > 0) require_pointer(messages, "chat_prompt", "messages");
    std::vector<thalweg::ChatMessage> conversation;
    for (size_t i = 0; i < message_count; ++i) {
      require_pointer(messages[i].role, "chat_prompt", "role");
      require_pointer(messages[i].content, "chat_prompt", "content");
      conversation.push_back({messages[i].role, messages[i].content});
    }
    if (think < -1 || think > 1) {
      throw thalweg::Error("chat_prompt", "think", "-1, 0 or 1", std::to_string(think));
    }
    const std::optional<bool> wanted = think < 0 ? std::nullopt : std::optional<bool>(think == 1);
    copy_out(model->text->chat_prompt(conversation, {.think = wanted}).tokens, tokens, capacity, count, "chat_prompt");
  });
}

thalweg_status thalweg_sequence_start(thalweg_model* model, thalweg_sequence** sequence) {
  return guarded([&] {
    require_pointer(sequence, "sequence_start", "sequence");
    *sequence = new thalweg_sequence{own_model(model, "sequence_start").start()};
  });
}

void thalweg_sequence_free(thalweg_sequence* sequence) { delete sequence; }

const int32_t* thalweg_sequence_tokens(const thalweg_sequence* sequence, size_t* count) {
  const std::span<const std::int32_t> tokens = sequence->sequence.tokens();
  if (count != nullptr) *count = tokens.size();
  return tokens.data();
}

const float* thalweg_sequence_logits(const thalweg_sequence* sequence, size_t* count) {
  const std::span<const float> logits = sequence->sequence.logits();
  if (count != nullptr) *count = logits.size();
  return logits.data();
}

thalweg_status thalweg_sequence_clear(thalweg_sequence* sequence) {
  return guarded([&] {
    require_pointer(sequence, "sequence_clear", "sequence");
    sequence->sequence.clear();
  });
}

thalweg_status thalweg_sequence_save(const thalweg_sequence* sequence, const char* path) {
  return guarded([&] {
    require_pointer(sequence, "sequence_save", "sequence");
    require_pointer(path, "sequence_save", "path");
    sequence->sequence.save(path);
  });
}

thalweg_status thalweg_sequence_restore(thalweg_sequence* sequence, const char* path) {
  return guarded([&] {
    require_pointer(sequence, "sequence_restore", "sequence");
    require_pointer(path, "sequence_restore", "path");
    sequence->sequence.restore(path);
  });
}

thalweg_status thalweg_prefill(thalweg_model* model, thalweg_sequence* sequence, const int32_t* tokens, size_t count) {
  return guarded([&] {
    require_pointer(sequence, "prefill", "sequence");
    own_model(model, "prefill").prefill(sequence->sequence, tokens_of(tokens, count, "prefill"));
  });
}

thalweg_status thalweg_step(thalweg_model* model, thalweg_sequence* const* sequences, const int32_t* tokens,
                            size_t sequence_count) {
  return guarded([&] {
    thalweg::Model& own = own_model(model, "step");
    if (sequence_count > 0) require_pointer(sequences, "step", "sequences");
    std::vector<thalweg::Sequence*> batch;
    for (size_t i = 0; i < sequence_count; ++i) {
      require_pointer(sequences[i], "step", "sequences");
      batch.push_back(&sequences[i]->sequence);
    }
    own.step(batch, tokens_of(tokens, sequence_count, "step"));
  });
}

thalweg_status thalweg_sample(const thalweg_model* model, const thalweg_sequence* sequence,
                              const thalweg_sampling* sampling, int32_t* token) {
  return guarded([&] {
    require_pointer(model, "sample", "model");
    require_pointer(sequence, "sample", "sequence");
    require_pointer(token, "sample", "token");
    *token = model->text->sample(sequence->sequence, sampling_of(sampling, "sample"));
  });
}

thalweg_status thalweg_generate(thalweg_model* model, thalweg_sequence* sequence, const int32_t* prompt,
                                size_t prompt_count, const thalweg_sampling* sampling, int64_t max_tokens,
                                thalweg_text_callback callback, void* user, thalweg_generated* result) {
  return guarded([&] {
    thalweg::Model& own = own_model(model, "generate");
    require_pointer(sequence, "generate", "sequence");
    if (result != nullptr) read_sized(result, thalweg_generated{}, "generate", "result");  // before anything runs
    std::function<bool(std::string_view)> on_bytes;
    if (callback != nullptr) {
      on_bytes = [&](std::string_view bytes) { return callback(user, bytes.data(), bytes.size()); };
    }
    const thalweg::Generated generated = own.generate(sequence->sequence, tokens_of(prompt, prompt_count, "generate"),
                                                      sampling_of(sampling, "generate"), max_tokens, on_bytes);
    if (result != nullptr) {
      write_sized({sizeof(thalweg_generated), static_cast<int64_t>(generated.tokens.size()),
                   static_cast<int32_t>(generated.reason), generated.prompt_tokens, generated.prefill_seconds,
                   generated.steps, generated.decode_seconds},
                  result, "generate", "result");
    }
  });
}
