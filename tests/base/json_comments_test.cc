#include "base/json_comments.h"

#include <gtest/gtest.h>

#include <random>

#include "base/json.h"

namespace pipewright {

TEST(JsonComments, BecomeSpaces) {
  EXPECT_EQ(WithoutComments(""), "");
  EXPECT_EQ(WithoutComments("1 // one"), "1       ");
  EXPECT_EQ(WithoutComments("// a\n1"), "    \n1");
  EXPECT_EQ(WithoutComments("[1,/* two */2]"), "[1,         2]");
  EXPECT_EQ(WithoutComments("/*a\r\nb*/1"), "   \r\n   1");
  EXPECT_EQ(WithoutComments("/**/1/*/ */2"), "    1      2");
}

TEST(JsonComments, TextsKeepTheirSlashes) {
  for (const char* text : {"\"http://a\"", "\"/* b */\"", R"("a\"// b")", R"(["\\", "// c"])"})
    EXPECT_EQ(WithoutComments(text), text);
  EXPECT_EQ(WithoutComments(R"("\\"//x)"), R"("\\"   )");
  EXPECT_EQ(WithoutComments("// \"\n\"a\""), "    \n\"a\"");
}

TEST(JsonComments, WhatIsNoCommentStays) {
  for (const char* text : {"/", "1 / 2", "/* never ends", "/*/", "*/", "\"open // text"})
    EXPECT_EQ(WithoutComments(text), text);
}

// Comments are inserted between the tokens of a document, and must not change it.
TEST(JsonComments, ADocumentIsTheSameWithComments) {
  const std::string tokens[] = {"{", "\"a//\"", ":", "[", "1", ",", "\"/*\\\"\"", "]", "}"};
  const std::string comments[] = {"", " ", "// c \"\n", "/* d \" */", "/*\n*/", "/***/", "//\n"};
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string plain, text;
    for (const std::string& token : tokens) {
      plain += token;
      text += token + comments[random() % std::size(comments)];
    }
    const std::string without = WithoutComments(text);
    ASSERT_EQ(without.size(), text.size());
    for (size_t k = 0; k < text.size(); ++k) ASSERT_EQ(without[k] == '\n', text[k] == '\n');
    EXPECT_EQ(ParseJson(without, "f"), ParseJson(plain, "f")) << text;
    EXPECT_EQ(WithoutComments(without), without);
  }
}

}  // namespace pipewright
