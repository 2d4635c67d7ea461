// SPDX-License-Identifier: MIT
#pragma once
// Style sheet of the page. Colours after Okabe and Ito (2008), darker on white and lighter on
// black, so that they contrast for all kinds of colour blindness.
#include <string>
#include <utility>

namespace tessera::report {

inline constexpr const char* kStyle = R"css(
:root{color-scheme:light;--ground:#fff;--card:#f7f7f5;--ink:#1b1b1a;--soft:#5c5c58;--rule:#dcdcd6;--axis:#8a8a84;
--c1:#0072b2;--c2:#c44e00;--c3:#00795c;--c4:#a64d82;--c5:#a87200;--c6:#3b8fc4;--c7:#767672;--c8:#5b4ea8;--on:#fff}
:root:has(#theme:checked){color-scheme:dark;--ground:#161615;--card:#20201f;--ink:#ecece8;--soft:#a8a8a2;--rule:#383836;--axis:#7c7c76;
--c1:#56a8e0;--c2:#f0803c;--c3:#2fbf95;--c4:#dd92bd;--c5:#e6b145;--c6:#9fd3f2;--c7:#9c9c96;--c8:#a99cf0;--on:#161615}
@media (prefers-color-scheme:dark){
:root{color-scheme:dark;--ground:#161615;--card:#20201f;--ink:#ecece8;--soft:#a8a8a2;--rule:#383836;--axis:#7c7c76;
--c1:#56a8e0;--c2:#f0803c;--c3:#2fbf95;--c4:#dd92bd;--c5:#e6b145;--c6:#9fd3f2;--c7:#9c9c96;--c8:#a99cf0;--on:#161615}
:root:has(#theme:checked){color-scheme:light;--ground:#fff;--card:#f7f7f5;--ink:#1b1b1a;--soft:#5c5c58;--rule:#dcdcd6;--axis:#8a8a84;
--c1:#0072b2;--c2:#c44e00;--c3:#00795c;--c4:#a64d82;--c5:#a87200;--c6:#3b8fc4;--c7:#767672;--c8:#5b4ea8;--on:#fff}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main,header,nav{padding:0 clamp(12px,2vw,40px)}
header{display:flex;flex-wrap:wrap;gap:8px 24px;align-items:baseline;padding-top:24px}
h1{font-size:1.6rem;margin:0;flex:1 1 auto;line-height:1.2}
h2{font-size:1.15rem;margin:40px 0 4px;line-height:1.3}
p{margin:4px 0 12px;max-width:75ch;color:var(--soft)}
nav{display:flex;gap:14px;white-space:nowrap;overflow-x:auto;scrollbar-width:thin;position:sticky;top:0;z-index:2;background:var(--ground);padding-top:8px;padding-bottom:8px;font-size:.87rem;border-bottom:1px solid var(--rule)}
nav a{color:var(--c1);text-decoration:none}nav span{color:var(--soft)}section{scroll-margin-top:44px}
#verdict dl{display:grid;grid-template-columns:max-content 1fr;gap:4px 18px;margin:18px 0 12px;font-size:1.05rem}
#verdict dt{font-weight:700}#verdict dd{margin:0;overflow-wrap:anywhere}
@media (max-width:700px){#verdict dl{grid-template-columns:1fr}#verdict dd{margin-bottom:6px}}
nav a:hover{text-decoration:underline}
.switch{font-size:.87rem;color:var(--soft);cursor:pointer;white-space:nowrap}
.switch input{accent-color:var(--c1);margin:0 6px 0 0;vertical-align:-2px}
:focus-visible{outline:2px solid var(--c1);outline-offset:2px}
figure{margin:8px 0 0;padding:0}
figure svg{display:block;width:100%;height:auto;font:12px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
figure.wide svg{max-width:1280px}
.narrow{display:none}
@media (max-width:700px){.wide{display:none}.narrow{display:block}h2{margin-top:32px}}
svg text{fill:var(--ink)}svg .tick{fill:var(--soft);font-size:11px}svg .unit{fill:var(--soft)}
svg .name.strong{font-weight:700}svg .value{font-variant-numeric:tabular-nums}svg .value.inside{fill:var(--on)}
.grid{stroke:var(--rule);fill:none}.axis{stroke:var(--axis);fill:none}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke-linecap:round}.dashed{stroke-dasharray:5 3}
.ideal{fill:none;stroke:var(--soft);stroke-width:1;stroke-dasharray:3 4}
.dot{stroke:var(--ground);stroke-width:1}.whisker{stroke:var(--ink);stroke-width:1.2;fill:none}.marker{stroke:var(--ink);stroke-width:2.5;fill:none}
.s1{stroke:var(--c1)}.s2{stroke:var(--c2)}.s3{stroke:var(--c3)}.s4{stroke:var(--c4)}.s5{stroke:var(--c5)}.s6{stroke:var(--c6)}.s7{stroke:var(--c7)}.s8{stroke:var(--c8)}
svg .f1{fill:var(--c1)}svg .f2{fill:var(--c2)}svg .f3{fill:var(--c3)}svg .f4{fill:var(--c4)}svg .f5{fill:var(--c5)}svg .f6{fill:var(--c6)}svg .f7{fill:var(--c7)}svg .f8{fill:var(--c8)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:2px 18px;margin:6px 0 0;padding:0;font-size:.85rem}
.legend li{display:flex;align-items:center;gap:6px;overflow-wrap:anywhere}
.legend svg{width:22px;height:12px;flex:none}
.legend.numbers{display:none}@media (max-width:700px){.legend.numbers{display:flex;flex-direction:column}}
details{margin:8px 0 0}summary{cursor:pointer;color:var(--soft);font-size:.87rem}
.scroll{overflow-x:auto;margin:8px 0 0;border:1px solid var(--rule);border-radius:6px}
table{border-collapse:collapse;font-size:.85rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:5px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
tbody tr:last-child>*{border-bottom:0}
thead th{background:var(--card);font-weight:600;white-space:normal;vertical-align:bottom;min-width:4.5em}
th.t,td.t{text-align:left}td.t{white-space:normal;min-width:7em;max-width:26em;overflow-wrap:anywhere}td.w{white-space:nowrap;min-width:0}
tbody th{text-align:left;font-weight:400;position:sticky;left:0;background:var(--ground);max-width:44vw;overflow-wrap:anywhere;white-space:normal;min-width:8em}
tr.base th{font-weight:700}
thead th:first-child{text-align:left;position:sticky;left:0;min-width:8em}
sup{color:var(--c2);font-weight:700;margin-left:2px}
ul.notes{margin:6px 0 0;padding:0;list-style:none;font-size:.85rem;color:var(--soft)}
.badge{color:var(--c2)}
footer{margin:48px 0 0;padding:16px clamp(12px,2vw,40px);color:var(--soft);font-size:.8rem;border-top:1px solid var(--rule)}
@media print{nav,.switch,summary{display:none}}
)css";

// Below this window width, rows of these tables become lists of titles and values.
inline std::string tables_as_lists(int pixels, const std::string& tables) {
  const std::pair<std::string, std::string> names[] = {{"PIXELS", std::to_string(pixels)},
                                                       {"TABLE", tables}};
  std::string style =
      R"css(@media (max-width:PIXELSpx){TABLE thead{display:none}TABLE tr,TABLE tbody th,TABLE td{display:block}TABLE td.w{white-space:normal}
TABLE tbody{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,25rem),1fr))}
TABLE tbody th{position:static;max-width:none;font-weight:700;border-bottom:0;background:var(--card)}TABLE td{display:flex;justify-content:space-between;gap:16px;white-space:normal;border-bottom:0;padding:3px 10px;max-width:none;text-align:right;overflow-wrap:anywhere}
TABLE td:empty{display:none}TABLE td::before{content:attr(data-t);color:var(--soft);text-align:left;flex:none;max-width:50%}TABLE tr{border:solid var(--rule);border-width:0 1px 1px 0;margin:0 -1px -1px 0}}
)css";
  for (const auto& [name, value] : names) {
    for (size_t at = 0; (at = style.find(name, at)) != style.npos; at += value.size()) {
      style.replace(at, name.size(), value);
    }
  }
  return style;
}

}  // namespace tessera::report
