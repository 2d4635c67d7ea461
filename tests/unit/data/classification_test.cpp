// SPDX-License-Identifier: MIT
#include "tessera/data/classification.h"

#include <random>
#include <set>

#include "lib/data/delimited.h"
#include "tests/support/messages.hpp"
#include "tests/support/mutate.hpp"
#include "tests/support/temp_dir.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/data/sample_paths.hpp"

using namespace tessera;

namespace {

using Fields = std::vector<std::string>;

std::vector<Record> csv(std::string_view text) {
  return read_delimited(text, ',', Quoting::kRfc4180, "f.csv");
}

LabelledTexts read(const std::string& name, const std::string& bytes,
                   const ColumnOptions& columns = {}) {
  const TempDir dir;
  LabelledTexts texts = read_labelled_texts(dir.write(name, bytes), columns);
  texts.path = name;
  return texts;
}

std::string refusal(const std::string& name, const std::string& bytes,
                    const ColumnOptions& columns = {}) {
  const TempDir dir;
  const std::string path = dir.write(name, bytes);
  std::string message = error_of([&] { read_labelled_texts(path, columns); });
  const size_t at = message.find(path);
  return at == std::string::npos ? message : message.replace(at, path.size(), name);
}

}  // namespace

TEST_CASE("CSV fields are quoted as in RFC 4180") {
  const auto records = csv("a,\"b \"\"c\"\", d\"\r\n\"two\nlines\",\n\n ,\"\"\n");
  REQUIRE(records.size() == 3);
  CHECK(records[0].fields == Fields{"a", "b \"c\", d"});
  CHECK(records[1].fields == Fields{"two\nlines", ""});
  CHECK(records[1].line == 2);
  CHECK(records[2].fields == Fields{" ", ""});
  CHECK(records[2].line == 5);
  CHECK(csv("\xEF\xBB\xBF"
            "x")
            .front()
            .fields == Fields{"x"});
  CHECK(csv("").empty());
  CHECK(csv("a,").front().fields == Fields{"a", ""});
  CHECK(read_delimited("a\t\"b\nc\"\td", '\t', Quoting::kNone, "f").size() == 2);
}

TEST_CASE("malformed CSV is refused with file and line") {
  CHECK(error_of([] { csv("a,b\nc,\"d\ne"); }) ==
        "f.csv:2: a quoted field that starts here never ends (byte 10)");
  CHECK(error_of([] { csv("a,b\nc\n"); }) == "f.csv:2: 1 fields, but line 1 has 2 (byte 6)");
  CHECK(error_of([] { csv("a,b\"c\n"); }) ==
        "f.csv:1: a quote inside a field that does not start with one (byte 3)");
  CHECK(error_of([] { csv("\"a\"b\n"); }) ==
        "f.csv:1: text after a closing quote; quotes inside a field are doubled (byte 3)");
  CHECK(error_of([] { csv("a\rb"); }) == "f.csv:1: a carriage return without a line feed (byte 1)");
  CHECK(error_of([] { csv(std::string_view("a\0b", 3)); }) == "f.csv:1: a NUL character (byte 1)");
  CHECK(error_of([] { csv("a\xC3(\n"); }) ==
        "f.csv: byte 1: not valid UTF-8; convert the file to UTF-8");
}

TEST_CASE("columns are found by name, by number, by the usual names or as in AG News") {
  const std::string named = "id,Headline,Label\n1,\"Rain, again\",wet\n2,Sun,dry\n";
  const auto by_name = read("a.csv", named, {.text = "Headline", .label = "Label"});
  CHECK(by_name.rows[0].text == "Rain, again");
  CHECK(by_name.rows[1].label == "dry");
  CHECK(by_name.rows[1].line == 3);
  const auto usual = read("a.csv", "label,text\nwet,Rain\n");
  CHECK(usual.rows.size() == 1);
  CHECK(usual.rows[0].text == "Rain");
  const auto ag_news = read("a.csv", "\"3\",\"Title\",\"Body\"\n\"4\",\"T\",\"B\"\n");
  CHECK(ag_news.rows[0].label == "3");
  CHECK(ag_news.rows[0].text == "Title Body");
  const auto by_number = read("a.tsv", "x\t0\ty \"q\"\nz\t1\tw\n", {.text = "3,1", .label = "2"});
  CHECK(by_number.rows[0].text == "y \"q\" x");
  CHECK(by_number.rows[1].label == "1");
  const auto json = read(
      "a.jsonl", "{\"text\": \"Rain\", \"label\": 1}\n\n{\"text\": \"Sun\", \"label\": \"0\"}\n");
  CHECK(json.rows[1].label == "0");
  CHECK(json.rows[1].line == 3);

  CHECK(refusal("a.csv", named, {.text = "Body"}) ==
        "a.csv: no column \"Body\"; the first line has id, Headline, Label");
  CHECK(refusal("a.csv", named, {.text = "4", .label = "1"}) ==
        "a.csv: column 4 was asked for; the file has columns 1 to 3");
  CHECK(refusal("a.csv", named, {.text = "1", .label = "1"}) ==
        "a.csv: column 1 is both the label and a text");
  CHECK(refusal("a.csv", "1\n2\n") == "a.csv:1: one column only; a label and a text are needed");
  CHECK(refusal("a.csv", "text,label\n") == "a.csv: no rows");
  CHECK(refusal("a.txt", "x") ==
        "a.txt: expected a file named .csv, .tsv, .jsonl or .json; tessera-finetune-causal reads "
        ".txt");
  CHECK(refusal("a.jsonl", "{\"text\": \"x\", \"label\": 1.5}") ==
        "a.jsonl:1: label: expected an integer, found number 1.5 (line 1, byte 23)");
}

TEST_CASE("the first line of a .csv file says what separates its fields") {
  struct Table {
    std::string bytes;
    char separator;
  };
  const Table tables[] = {{"text,label\nRain; sun,wet\n", ','},
                          {"text;label\nRain, sun;wet\n", ';'},
                          {"\xEF\xBB\xBFtext;label\r\nRain;wet\r\n", ';'},
                          {"text\tlabel\nRain, sun\twet\n", '\t'},
                          {"\n\n\"text, long\";label\nRain;wet\n", ';'},
                          {"\"a\nb;c\",label\nRain,wet\n", ','},
                          {"3;\"Rain, \"\"sun\"\"\";wind\n4;x;y\n", ';'},
                          {"text;note,label\nRain,wet\n", ','}};
  for (const Table& table : tables) {
    INFO(table.bytes);
    const auto texts = read("a.csv", table.bytes, {.text = "1", .label = "2"});
    CHECK(texts.separator == table.separator);
    CHECK(texts.text_columns.size() == 1);
  }
  const auto texts = read("a.csv", tables[1].bytes);
  CHECK(texts.rows[0].text == "Rain, sun");
  CHECK(texts.rows[0].label == "wet");
  CHECK(read("a.tsv", "text\tlabel\nRain;\twet\n").separator == '\0');
  CHECK(separator_of("") == ',');
  CHECK(separator_of("\"never closed; ") == ',');
}

TEST_CASE("a file without a label or text column is refused, the columns taken are named") {
  CHECK(refusal("a.csv", "title,body\nx,y\n") ==
        "a.csv: no column named like a label (label, labels, class, category); the first line has "
        "title, body; use --label_column NAME or NUMBER");
  CHECK(refusal("a.csv", "text,stars\nx,1\n").find("a.csv: no column named like a label") == 0);
  CHECK(refusal("a.csv", "label,body\n1,y\n").find("a.csv: no column named like a text") == 0);
  CHECK(refusal("a.csv", "A sentence,another\n3,x\n").find("no column named like a label") !=
        std::string::npos);
  CHECK(
      refusal("a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"y\"}\n") ==
      "a.jsonl: no row has label, labels, class, category; of the first, the row's keys are text; "
      "tessera-finetune-causal trains texts; use --label_column NAME");
  CHECK(refusal("a.jsonl", "{\"label\": 1}\n") ==
        "a.jsonl: no row has text, sentence, content, review, description; of the first, the row's "
        "keys are label; use --text_column NAME");
  CHECK(refusal("a.jsonl", "{\"text\": \"x\", \"label\": 1}", {.label = "colour"}) ==
        "a.jsonl: no row has colour; of the first, the row's keys are text, label; use "
        "--label_column NAME");

  const auto named = read("a.csv", "Label,id,Text\n1,7,x\n");
  CHECK(named.label_column == "Label");
  CHECK(named.text_columns == Fields{"Text"});
  const auto plain = read("a.csv", "2,c,d\n1,e,f\n");
  CHECK(plain.label_column == "column 1");
  CHECK(plain.text_columns == Fields{"column 2", "column 3"});
  const auto json = read("a.jsonl", "{\"sentence\": \"x\", \"class\": 2.0}\n");
  CHECK(json.rows[0].label == "2");
  CHECK(json.label_column == "class");
  CHECK(json.text_columns == Fields{"sentence"});
}

TEST_CASE("rows without a text, a label or a known label are skipped with reason and place") {
  const TempDir dir;
  const auto skipped = [&](const std::string& name, const std::string& bad,
                           const std::string& good) {
    std::string bytes = bad;
    for (int i = 0; i < 100; ++i) bytes += good;
    RowIssues issues;
    const std::string path = dir.write(name, bytes);
    const LabelledTexts texts = read_labelled_texts(path, {}, &issues);
    CHECK(texts.rows.size() == 100);
    std::string found;
    for (const auto& kind : issues.kinds()) {
      found += kind.reason + " " + std::to_string(kind.count) + kind.places[0].substr(path.size()) +
               "; ";
    }
    RowIssues strict(true);
    CHECK_FALSE(error_of([&] { read_labelled_texts(path, {}, &strict); }).empty());
    return found;
  };
  CHECK(skipped("a.csv", ",\"T\",\"B\"\n1,, \n", "2,Title,Body\n") ==
        "no label 1:1; empty text 1:2; ");
  CHECK(skipped("a.tsv", "text\tlabel\nx\t\n \t1\n", "y\t0\n") == "no label 1:2; empty text 1:3; ");
  CHECK(skipped("a.jsonl",
                "{\"text\":\"x\"}\n{\"text\":\"x\",\"label\":null}\n{\"text\":null,\"label\":1}\n",
                "{\"text\":\"y\",\"label\":0}\n") == "no label 2:1; empty text 1:3; ");

  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  const LabelMap labels = LabelMap::from_names({"wet", "dry"});
  const LabelledTexts texts{"f.csv", {{"rain", "wet", 1}, {"sun", "warm", 2}, {"", "dry", 3}}};
  RowIssues issues;
  CHECK(classification_examples(texts, labels, tokenizer, 16, &issues).size() == 1);
  REQUIRE(issues.kinds().size() == 2);
  CHECK(issues.kinds()[0].reason == "label not among the known ones");
  CHECK(issues.kinds()[1].places == Fields{"f.csv:3"});
  CHECK(error_of([&] { classification_examples(texts, labels, tokenizer, 16); }) ==
        "f.csv:2: label \"warm\" is not among the 2 known ones: wet, dry");
}

TEST_CASE("labels become class numbers") {
  const auto map_of = [](const std::vector<std::string>& labels) {
    LabelledTexts texts{"f.csv", {}};
    for (const std::string& label : labels) texts.rows.push_back({"t", label, 1});
    return LabelMap::from(texts);
  };
  const LabelMap ag_news = map_of({"3", "4", "1"});
  CHECK(ag_news.size() == 4);
  CHECK(ag_news.id("4", "f") == 3);
  CHECK(ag_news.id("2", "f") == 1);  // a gap keeps its number
  CHECK(error_of([&] { ag_news.id("5", "f.csv:7"); }) ==
        "f.csv:7: label \"5\" is not among the 4 known ones: 1, 2, 3, 4");
  CHECK(map_of({"0", "2"}).id("2", "f") == 2);
  CHECK(map_of({"-1", "1"}).id("1", "f") == 1);
  const LabelMap words = map_of({"wet", "dry", "10"});
  CHECK(words.names() == Fields{"10", "dry", "wet"});
  CHECK(error_of([&] {
          map_of({"1", "100000"});
        }) == "f.csv: label 100000: labels from 1 to 99999 are accepted");
  CHECK(error_of([&] { map_of({""}); }) == "f.csv:1: empty label");
  const LabelMap model = LabelMap::from_names({"World", "Sports"});
  CHECK(model.id("Sports", "f") == 1);
  CHECK(model.id("1", "f") == 1);
  CHECK(error_of([&] { model.id("2", "f"); }) ==
        "f: label \"2\" is not among the 2 known ones: World, Sports");
}

TEST_CASE("the shipped sample has 400 and 100 rows of four topics, none of them in both files") {
  const auto train = read_labelled_texts(source_path("examples/data/classification_train.csv"));
  const auto heldout = read_labelled_texts(source_path("examples/data/classification_heldout.csv"));
  CHECK(train.rows.size() == 400);
  CHECK(heldout.rows.size() == 100);
  std::set<std::string> seen;
  for (const auto* part : {&train, &heldout}) {
    for (const LabelledText& row : part->rows) CHECK(seen.insert(row.text).second);
  }
  const LabelMap labels = LabelMap::from(train);
  CHECK(labels.names() == Fields{"astronomy", "cooking", "gardening", "sailing"});
  const Tokenizer tokenizer = Tokenizer::load(sample_tokenizer());
  double done = 0;
  const Dataset dataset = classification_examples(heldout, labels, tokenizer, 16, nullptr,
                                                  [&](double share) { done = share; });
  CHECK(done == 1.0);
  CHECK(dataset.num_labels == 4);
  CHECK(dataset.longest() == 16);
  std::vector<int> count(4);
  for (const Example& example : dataset.examples)
    ++count.at(static_cast<size_t>(example.labels.at(0)));
  for (const int n : count) CHECK(n > 10);
  LabelledTexts empty{"f.csv", {{"", "cooking", 9}}};
  CHECK(error_of([&] { classification_examples(empty, labels, tokenizer, 16); }) ==
        "f.csv:9: the text has no tokens");
}

TEST_CASE("mutated tables are read or end in a tessera::Error") {
  const std::string seed =
      "text,label\n\"one \"\"two\"\", three\",a\r\nvier,b\n\"fünf\nsechs\",a\n";
  const std::string alphabet("\",\n\r\t a\\\xC3\xBC\xff", 11);
  const TempDir dir;
  std::mt19937_64 random(3);
  size_t accepted = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::string text = mutated(seed, alphabet, random);
    try {
      LabelMap::from(read_labelled_texts(dir.write(round % 2 ? "t.csv" : "t.tsv", text)));
      ++accepted;
    } catch (const Error&) {
    }
  }
  CHECK(accepted > 100);
  CHECK(accepted < 2900);
}
