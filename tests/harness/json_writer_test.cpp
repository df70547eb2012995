#include "plan/json_writer.h"

#include <gtest/gtest.h>

#include <limits>

#include "read_json.h"

namespace {

using nlohmann::json;
using oomlab::JsonWriter;
using oomlab::test::read_json;

TEST(JsonWriter, NestsAndKeepsOrder) {
  JsonWriter w;
  w.begin_object().member("b", 1).key("a").begin_array().value(2).begin_object().end_object().begin_array().end_array();
  w.end_array().member("c", true).end_object();
  EXPECT_EQ(read_json(w.text()), read_json(R"({"b": 1, "a": [2, {}, []], "c": true})"));
  EXPECT_LT(w.text().find("\"b\""), w.text().find("\"a\""));
  EXPECT_EQ(w.text().back(), '\n');
}

TEST(JsonWriter, QuotesWhatMustBeQuoted) {
  const std::string nasty = "a\"b\\c\nd\te\x01 \xc3\xa9 end";
  JsonWriter w;
  w.begin_object().member(nasty, nasty).end_object();
  EXPECT_EQ(read_json(w.text())[nasty], nasty);
}

TEST(JsonWriter, NumbersSurviveARoundTrip) {
  JsonWriter w;
  w.begin_array().value(0.1).value(1e300).value(-0.0).value(3.0).value(std::numeric_limits<std::size_t>::max());
  w.value(std::numeric_limits<long long>::min()).end_array();
  const json parsed = read_json(w.text());
  EXPECT_EQ(parsed[0].get<double>(), 0.1);
  EXPECT_EQ(parsed[1].get<double>(), 1e300);
  EXPECT_EQ(parsed[3].get<double>(), 3.0);
  EXPECT_EQ(parsed[4].get<std::size_t>(), std::numeric_limits<std::size_t>::max());
  EXPECT_EQ(parsed[5].get<long long>(), std::numeric_limits<long long>::min());
}

TEST(JsonWriter, WhatJsonCannotSayIsNull) {
  JsonWriter w;
  w.begin_array().value(std::numeric_limits<double>::infinity()).value(std::numeric_limits<double>::quiet_NaN());
  w.value(std::optional<int>()).value(std::optional<int>(7)).null().end_array();
  EXPECT_EQ(read_json(w.text()), read_json("[null, null, null, 7, null]"));
}

}  // namespace
