#pragma once

#include <cctype>
#include <cstdlib>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace ho::test {

/// A JSON value as these tests read it. Protobuf's Struct would do, but its inlined map code does
/// not agree with the system's library under TSan. Throws std::runtime_error on what is not JSON.
struct Json {
  std::map<std::string, Json> fields;
  std::vector<Json> items;
  std::string text;
  double number = 0;
  bool truth = false;

  [[nodiscard]] const Json& at(const std::string& field) const { return fields.at(field); }

  [[nodiscard]] static Json parse(const std::string& json) {
    std::size_t at = 0;
    Json value = read(json, at);
    skip(json, at);
    if (at != json.size()) throw std::runtime_error("more than one JSON value");
    return value;
  }

 private:
  static void skip(const std::string& json, std::size_t& at) {
    while (at < json.size() && std::isspace(static_cast<unsigned char>(json[at])) != 0) ++at;
  }
  static char peek(const std::string& json, std::size_t& at) {
    skip(json, at);
    if (at >= json.size()) throw std::runtime_error("JSON ends early");
    return json[at];
  }
  static bool take(const std::string& json, std::size_t& at, char wanted) {
    if (peek(json, at) != wanted) return false;
    ++at;
    return true;
  }
  static void expect(const std::string& json, std::size_t& at, char wanted) {
    if (!take(json, at, wanted)) throw std::runtime_error("JSON lacks " + std::string(1, wanted));
  }

  static std::string read_text(const std::string& json, std::size_t& at) {
    expect(json, at, '"');
    std::string text;
    while (at < json.size() && json[at] != '"') {
      if (json[at] == '\\') ++at;  // takes the next character as it is: enough here
      if (at < json.size()) text += json[at++];
    }
    expect(json, at, '"');
    return text;
  }

  static Json read(const std::string& json, std::size_t& at) {
    Json value;
    const char first = peek(json, at);
    if (first == '{') {
      ++at;
      while (!take(json, at, '}')) {
        const std::string name = read_text(json, at);
        expect(json, at, ':');
        value.fields[name] = read(json, at);
        if (peek(json, at) != '}') expect(json, at, ',');
      }
    } else if (first == '[') {
      ++at;
      while (!take(json, at, ']')) {
        value.items.push_back(read(json, at));
        if (peek(json, at) != ']') expect(json, at, ',');
      }
    } else if (first == '"') {
      value.text = read_text(json, at);
    } else {
      read_word(json, at, value);
    }
    return value;
  }

  static void read_word(const std::string& json, std::size_t& at, Json& value) {
    for (const char* const word : {"true", "false", "null"}) {
      if (json.compare(at, std::string(word).size(), word) != 0) continue;
      value.truth = word[0] == 't';
      at += std::string(word).size();
      return;
    }
    char* end = nullptr;
    value.number = std::strtod(json.c_str() + at, &end);
    if (end == json.c_str() + at) throw std::runtime_error("JSON has no value here");
    at = static_cast<std::size_t>(end - json.c_str());
  }
};

}  // namespace ho::test
