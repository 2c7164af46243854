#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "frontend/bench/bench.h"
#include "frontend/bench/samples.h"
#include "frontend/bench/step_lines.h"

namespace cordon::bench {
namespace {

TEST(Quantile, IsASampleThatSoManyDoNotExceed) {
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  EXPECT_EQ(median(hundred), 50);
  EXPECT_EQ(quantile(hundred, 0.99), 99);
  EXPECT_EQ(quantile(hundred, 1), 100);
  EXPECT_EQ(quantile(hundred, 0.001), 1);
}

TEST(Quantile, OfOneSampleIsIt) {
  EXPECT_EQ(quantile({7}, 0.99), 7);
}

TEST(Quantile, OfNoneIsRefused) {
  EXPECT_THROW(quantile({}, 0.5), std::invalid_argument);
}

Report sample() {
  Report report;
  report.machine = {"Some CPU", "6.1", "runc 1.1.5", 2, 1000};
  Row row;
  row.name = "exec";
  row.unit = "ms";
  row.n = 100;
  row.p50 = 1.23456;
  row.p99 = 123456;
  row.baselineName = "runc exec";
  row.baseline = 60;
  row.ratio = 48.6;
  row.target = "at least 20 times faster";
  row.met = true;
  report.rows.push_back(row);
  return report;
}

TEST(Report, JsonHasTheDocumentedFields) {
  auto document = nlohmann::json::parse(asJson(sample()));
  EXPECT_EQ(document["machine"]["cpus"], 2);
  auto row = document["rows"][0];
  EXPECT_EQ(row["name"], "exec");
  EXPECT_EQ(row["unit"], "ms");
  EXPECT_EQ(row["n"], 100);
  EXPECT_DOUBLE_EQ(row["p50"], 1.23);
  EXPECT_DOUBLE_EQ(row["p99"], 123456);
  EXPECT_DOUBLE_EQ(row["baseline"], 60);
  EXPECT_DOUBLE_EQ(row["ratio"], 48.6);
  EXPECT_EQ(row["met"], true);
}

TEST(Report, ARowThatCouldNotBeMeasuredHasNoNumbersAndIsNotMet) {
  Report report = sample();
  report.rows[0].n = 0;
  report.rows[0].met.reset();
  report.rows[0].ratio.reset();
  auto row = nlohmann::json::parse(asJson(report))["rows"][0];
  EXPECT_TRUE(row["p50"].is_null());
  EXPECT_TRUE(row["ratio"].is_null());
  EXPECT_FALSE(allMet(report));
}

TEST(StepTable, TakesTheStepsOfTheBrokersLines) {
  StepTable table;
  table.add(
      "2026-01-02T03:04:05.678 broker info sb-a: ready, owner 0, jail; ms: probe 0.012, "
      "jailer/user namespace 0.345, ready 0.010 = 0.367 ms");
  table.add(
      "x broker info sb-a: destroyed (asked to), owner 0, 3 items; ms: mark 0.001 = 0.001 ms");
  table.add("x broker info sb-b: ready, owner 0, jail; ms: probe 0.020 = 0.020 ms");
  table.add("x broker warn sb-c: not created, owner 0, jail: r d; ms: probe 9.000 = 9.000 ms");
  table.add("x broker info listening");
  std::vector<std::pair<std::string, std::vector<double>>> expected = {
      {"create: all", {0.367, 0.020}},
      {"create: probe", {0.012, 0.020}},
      {"create: jailer/user namespace", {0.345}},
      {"create: ready", {0.010}},
      {"destroy: all", {0.001}},
      {"destroy: mark", {0.001}}};
  EXPECT_EQ(table.steps(), expected);
}

TEST(Report, TableShowsTargetsMetAndMissed) {
  Report report = sample();
  EXPECT_TRUE(allMet(report));
  EXPECT_NE(asTable(report).find("met"), std::string::npos);
  report.rows[0].met = false;
  EXPECT_FALSE(allMet(report));
  EXPECT_NE(asTable(report).find("MISSED"), std::string::npos);
}

}  // namespace
}  // namespace cordon::bench
