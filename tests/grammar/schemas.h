#pragma once

// Schemas of the kinds that are in use. A string with a pattern or a format lists examples, for documents made of it.

#include <string_view>

namespace thalweg::grammar {

constexpr std::string_view kSchemas[] = {
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": false})",
    R"({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "number"}, "c": {"type": "boolean"},
        "d": {"type": "null"}}, "required": ["b"]})",
    R"({"type": "array", "items": {"type": "integer", "minimum": -3, "maximum": 1024}, "minItems": 1, "maxItems": 5})",
    R"({"type": "array", "items": {"type": "string", "maxLength": 4}})",
    R"({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": {"type": "boolean"},
        "minItems": 1})",
    R"({"enum": ["red", "green", "gr\u00fcn", 3, null, {"a": [1, 2]}, "with \"quotes\" and \\ and \n"]})",
    R"({"type": "string", "enum": ["a", "ab", "abc", 5]})",
    R"({"const": {"kind": "fixed", "value": [true]}})",
    R"({"type": ["string", "null", "integer"]})",
    R"({"type": "object", "properties": {"x": {"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]},
        "y": {"type": "integer", "nullable": true}}, "required": ["x", "y"]})",
    R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
        "required": ["kind", "radius"], "additionalProperties": false},
        {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "number"}},
        "required": ["kind", "side"], "additionalProperties": false}]})",
    R"({"$defs": {"node": {"type": "object", "properties": {"value": {"type": "integer"},
        "children": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "required": ["value", "children"],
        "additionalProperties": false}}, "$ref": "#/$defs/node"})",
    R"({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]})",
    R"({"type": "string", "minLength": 3, "maxLength": 6})",
    R"({"type": "string", "minLength": 200, "maxLength": 400})",
    R"({"type": "string", "pattern": "^[A-Z]{2,3}-\\d+(\\.\\d*)?$", "examples": ["AB-1", "XYZ-20.", "QQ-007.5"]})",
    R"({"type": "string", "pattern": "[a-z]c?[ -@]|x{2,3}$", "examples": ["Ac!", "a@", "xx", "Yxxx", "\u00fcc1\\"]})",
    R"({"type": "string", "pattern": "^[^a-z\"]*$", "examples": ["", "ABC", "\u00dc\u4f60\ud83d\ude00", "\\\t1"]})",
    R"({"type": "object", "properties": {
        "date": {"type": "string", "format": "date", "examples": ["2024-02-29", "1999-12-31"]},
        "time": {"type": "string", "format": "time", "examples": ["23:59:59Z", "00:00:00.5+02:30"]},
        "both": {"type": "string", "format": "date-time", "examples": ["2001-04-30T12:00:00Z"]},
        "id": {"type": "string", "format": "uuid", "examples": ["123e4567-e89b-12d3-a456-426614174000"]},
        "host": {"type": "string", "format": "ipv4", "examples": ["127.0.0.1", "255.249.10.0"]},
        "mail": {"type": "string", "format": "email", "examples": ["a.b+c@example.org"]}},
        "required": ["date", "time", "both", "id", "host", "mail"]})",
    R"({"type": "integer", "minimum": 17, "exclusiveMaximum": 4021})",
    R"({"type": "integer", "exclusiveMinimum": -1205, "maximum": -7})",
    R"({"type": "integer", "minimum": -0.5, "maximum": 12.5})",
    R"({"type": "number", "minimum": 0, "maximum": 1})",
    R"({"type": "number", "exclusiveMinimum": -20, "exclusiveMaximum": 305})",
    R"({"type": "number", "exclusiveMinimum": 7})",
    R"({"type": "object", "properties": {"known": {"type": "integer"}, "kn\u00f6wn": {"type": "string"}},
        "additionalProperties": {"type": "boolean"}})",
    R"({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}})",
    R"({"type": "object", "required": ["free", "also"], "additionalProperties": {"type": "number"}})",
    R"({"type": "object", "properties": {"any": true, "nested": {"type": "object", "properties": {"list":
        {"type": "array", "items": {"type": "object", "properties": {"k": {"type": "string"}, "v": {}},
        "required": ["k"]}}}}}, "required": ["nested"]})",
    R"({"allOf": [{"$ref": "#/$defs/base"}, {"type": "object", "properties": {"b": {"type": "integer", "maximum": 9}},
        "required": ["b"]}], "$defs": {"base": {"type": "object", "properties": {"a": {"type": "string"},
        "b": {"type": "number", "minimum": 2}}, "required": ["a"]}}})",
    R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
    R"({"type": "object", "properties": {"never": false, "a": {"type": "integer"}}, "required": ["a"]})",
    R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "description": "D", "default": 1,
        "type": "number", "format": "double"})",
    R"({})",
    R"({"type": "object"})",
};

}  // namespace thalweg::grammar
