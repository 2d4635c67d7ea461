// SPDX-License-Identifier: MIT
// CSV, TSV and JSON lines of labelled texts. The first character selects the kind (c, t or j;
// capital: columns by number); the rest is the file.
#include "tessera/data/classification.h"
#include "tests/fuzz/readers/reader_fuzz.h"

using namespace tessera;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text = fuzz::text_of(data, size);
  char kind = 0;
  if (!fuzz::take_kind(text, kind)) return 0;
  const char* name = kind == 'j' ? "rows.jsonl" : (kind | 0x20) == 't' ? "rows.tsv" : "rows.csv";
  const std::string path = fuzz::folder().write(name, text);
  ColumnOptions columns;
  if (kind == 'C' || kind == 'T') columns = {.text = "3,2", .label = "1"};
  fuzz::accepts({ErrorCode::kDataLoss, ErrorCode::kInvalidArgument}, [&] {
    RowIssues issues;
    const LabelledTexts texts = read_labelled_texts(path, columns, &issues);
    fuzz::expect(!texts.rows.empty(), "no rows");
    const LabelMap labels = LabelMap::from(texts);
    fuzz::accepts({}, [&] {
      for (const LabelledText& row : texts.rows) {
        const int32_t id = labels.id(row.label, "row");
        fuzz::expect(id >= 0 && id < labels.size(), "a class out of range");
      }
    });
  });
  return 0;
}
