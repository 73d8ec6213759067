#pragma once

#include <string>
#include <string_view>

namespace thalweg::server {

// The page at /, which is src/server/page/index.html.
std::string_view page();

// Its content security policy: its own script and style by their hashes, its own server, nothing else.
std::string page_policy();

}  // namespace thalweg::server
