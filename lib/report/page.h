// SPDX-License-Identifier: MIT
#pragma once
// The report as one self-contained HTML file with style, plots and tables, without scripts.
#include <string>
#include <vector>

#include "lib/report/figures.h"

namespace tessera::report {

// tables: in page order, below the plots. reload_s: seconds between reloads of the page; 0: none.
std::string to_html(const Study& study, const std::vector<Figure>& figures,
                    const std::vector<Table>& tables, int reload_s = 0);

}  // namespace tessera::report
