// SPDX-License-Identifier: MIT
#pragma once
// Rotary tables of a block, which are formed once for each length instead of in every pass.
#include <string>
#include <vector>

#include "lib/program/graph.h"

namespace tessera::program {

struct TakenTable {
  Graph graph;          // gives the table; user's inputs, constants and buffers enter
  bool paired = false;  // see half_table()
};

// Gives each attention its number in the piece, which its state of a block is kept by.
void number_attentions(Graph& piece);

// Takes the tables out of the piece that have a row for each place, whatever the micro-batch holds:
// inputs of kind kTable stand for them, as half_table() gives them, named by their places in the
// result. length: the extent that counts a row's tokens.
std::vector<TakenTable> take_tables(Graph& piece, const std::string& length);

// Whether all of its attentions run from a key/value cache: their tables follow no micro-batch's
// own length, and their scores have neither soft caps nor sinks.
bool has_cached_form(const Graph& piece);

}  // namespace tessera::program
