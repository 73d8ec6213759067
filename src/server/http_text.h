#pragma once

// What an answer looks like on the wire.

#include <string>
#include <string_view>

#include "server/http_server.h"

namespace thalweg::server {

std::string lower(std::string text);  // of ASCII

// Status line and headers, without the empty line after them.
std::string response_head(int status, std::string_view content_type, const HttpHeaders& headers, bool keep_alive);

// A chunk of a chunked body; `bytes` must not be empty, which would be the last.
std::string chunk_of(std::string_view bytes);

}  // namespace thalweg::server
