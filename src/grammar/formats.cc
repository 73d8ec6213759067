#include "grammar/formats.h"

#include <algorithm>
#include <iterator>

#include "grammar/schema_keywords.h"

namespace thalweg::grammar {
namespace {

#define THALWEG_LEAP_YEAR "(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
#define THALWEG_DATE                                                                             \
  "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)" \
  "|02-(?:0[1-9]|1\\d|2[0-8]))|" THALWEG_LEAP_YEAR "-02-29)"
#define THALWEG_HOUR_AND_MINUTE "(?:[01]\\d|2[0-3]):[0-5]\\d"
#define THALWEG_TIME THALWEG_HOUR_AND_MINUTE ":[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-]" THALWEG_HOUR_AND_MINUTE ")"
#define THALWEG_OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define THALWEG_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define THALWEG_ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,15}"

struct Format {
  std::string_view name;
  std::string_view pattern;
};

constexpr Format kFormats[] = {
    {"date", "^" THALWEG_DATE "$"},
    {"time", "^" THALWEG_TIME "$"},
    {"date-time", "^" THALWEG_DATE "T" THALWEG_TIME "$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"ipv4", "^" THALWEG_OCTET "(?:\\." THALWEG_OCTET "){3}$"},
    {"email", "^" THALWEG_ATOM "(?:\\." THALWEG_ATOM "){0,3}@" THALWEG_LABEL "(?:\\." THALWEG_LABEL "){1,4}$"},
};

constexpr std::string_view kUnsupported[] = {
    "duration", "hostname",      "idn-email",    "idn-hostname", "ipv6",
    "iri",      "iri-reference", "json-pointer", "regex",        "relative-json-pointer",
    "uri",      "uri-reference", "uri-template",
};

}  // namespace

std::string_view pattern_of_format(std::string_view format, const std::string& path) {
  for (const Format& one : kFormats) {
    if (one.name == format) return one.pattern;
  }
  if (std::find(std::begin(kUnsupported), std::end(kUnsupported), format) != std::end(kUnsupported)) {
    refuse(path, "date, time, date-time, uuid, ipv4 or email", "\"" + std::string(format) + "\"");
  }
  return {};
}

}  // namespace thalweg::grammar
