#include "server/metrics.h"

namespace thalweg::server {

std::string metrics_text(const EngineStats& stats) {
  std::string text;
  const auto add = [&](const char* name, const char* type, const char* help, auto value) {
    text.append("# HELP thalweg_").append(name).append(" ").append(help).append("\n# TYPE thalweg_");
    text.append(name).append(" ").append(type).append("\nthalweg_").append(name).append(" ");
    text.append(std::to_string(value)).append("\n");
  };
  add("requests_total", "counter", "Requests that were accepted.", stats.requests);
  add("requests_refused_total", "counter", "Requests that found the queue full.", stats.refused);
  add("requests_finished_total", "counter", "Requests that ended by themselves.", stats.finished);
  add("requests_cancelled_total", "counter", "Requests that were cancelled.", stats.cancelled);
  add("requests_failed_total", "counter", "Requests that an error ended.", stats.failed);
  add("requests_running", "gauge", "Requests that have a slot.", stats.running);
  add("requests_waiting", "gauge", "Requests that wait for a slot.", stats.waiting);
  add("prompt_tokens_total", "counter", "Tokens of prompts.", stats.prompt_tokens);
  add("prompt_tokens_cached_total", "counter", "Of them, found in the prefix cache.", stats.prompt_tokens_cached);
  add("prompt_tokens_computed_total", "counter", "Of them, run through the model.", stats.prompt_tokens_computed);
  add("generated_tokens_total", "counter", "Tokens that were generated.", stats.generated_tokens);
  add("draft_tokens_total", "counter", "Tokens that were guessed.", stats.draft_tokens);
  add("draft_tokens_accepted_total", "counter", "Of them, those that were right.", stats.accepted_tokens);
  add("steps_total", "counter", "Runs of the model.", stats.steps);
  add("step_sequences_total", "counter", "Sequences in these runs.", stats.step_sequences);
  add("step_seconds_total", "counter", "Time in the model.", stats.step_seconds);
  add("cache_seconds_total", "counter", "Time in the prefix cache.", stats.bookkeeping_seconds);
  add("cache_bytes", "gauge", "Host memory of the prefix cache.", stats.cache_bytes);
  add("cache_device_bytes", "gauge", "Device memory of the prefix cache.", stats.cache_device_bytes);
  add("cache_checkpoints", "gauge", "Checkpoints in the prefix cache.", stats.cache_checkpoints);
  add("cache_evictions_total", "counter", "Checkpoints that were dropped for others.", stats.cache_evictions);
  add("cache_dir_bytes", "gauge", "Files of --cache-dir.", stats.cache_dir_bytes);
  add("cache_dir_checkpoints", "gauge", "Checkpoints in --cache-dir.", stats.cache_dir_checkpoints);
  add("cache_dir_evictions_total", "counter", "Checkpoints that were dropped there.", stats.cache_dir_evictions);
  add("cache_dir_tokens_total", "counter", "Tokens that were read from there.", stats.cache_dir_tokens);
  add("cache_dir_failures_total", "counter", "Files not written, or damaged.", stats.cache_dir_failures);
  return text;
}

}  // namespace thalweg::server
