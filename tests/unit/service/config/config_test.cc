// SPDX-License-Identifier: Apache-2.0
#include "service/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "service/limits.h"

namespace cairn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

absl::StatusOr<CommandLine> Parse(std::vector<std::string> arguments,
                                  Environment environment = {}) {
  return ParseCommandLine(arguments, environment);
}

// The error's text, or "" when there is none.
std::string ErrorOf(std::vector<std::string> arguments, Environment environment = {}) {
  return std::string(Parse(std::move(arguments), std::move(environment)).status().message());
}

class ConfigFile : public ::testing::Test {
 protected:
  ConfigFile() {
    std::string name = (std::filesystem::temp_directory_path() / "cairn-config-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~ConfigFile() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& text) {
    const std::string path = folder_ + "/cairn.yaml";
    std::ofstream(path) << text;
    return path;
  }

 private:
  std::string folder_;
};

TEST(Config, DefaultsBindToLoopbackAndLeaveUcxOff) {
  const auto line = Parse({});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.control, "127.0.0.1:50151");
  EXPECT_EQ(line->config.http.ToString(), "127.0.0.1:9464");
  EXPECT_FALSE(line->config.data.enabled());
  EXPECT_EQ(line->config.host_bytes, 4_GiB);
  EXPECT_EQ(line->config.staging_bytes, 512_MiB);
  EXPECT_EQ(line->sources.at("host-bytes"), Source::kDefault);
}

TEST(Config, SocketDefaultsToTheRuntimeFolder) {
  const auto line = Parse({}, {{"XDG_RUNTIME_DIR", "/run/user/1000"}});
  ASSERT_TRUE(line.ok());
  EXPECT_EQ(line->config.socket, "/run/user/1000/cairn/cairnd.sock");
  const auto without = Parse({});
  ASSERT_TRUE(without.ok());
  EXPECT_THAT(without->config.socket, HasSubstr("/tmp/cairn-"));
}

TEST(Config, OperatorsComeInBesideTheSocketThatThereIs) {
  const auto admin = [](std::vector<std::string> flags) {
    const auto line = Parse(std::move(flags), {{"XDG_RUNTIME_DIR", "/run/user/1000"}});
    return line.ok() ? line->config.admin : std::string(line.status().message());
  };
  EXPECT_EQ(admin({}), "unix:/run/user/1000/cairn/cairnd.admin.sock");
  EXPECT_EQ(admin({"--socket=/run/a"}), "unix:/run/a.admin.sock");
  EXPECT_EQ(admin({"--control=unix:/run/c/control.sock", "--socket=/run/d.sock"}),
            "unix:/run/c/control.admin.sock");
  EXPECT_EQ(admin({"--socket=off", "--data=10.0.0.1:7"}),
            "unix:/run/user/1000/cairn/cairnd.admin.sock");
  EXPECT_EQ(admin({"--admin=off"}), "off");
  EXPECT_EQ(admin({"--admin=[::1]:7"}), "[::1]:7");
  EXPECT_THAT(admin({"--admin=unix:here"}), HasSubstr("admin (from flag): 'unix:here'"));
}

TEST(Config, PlainTextStaysOnThisHostUnlessTheUserSaysOtherwise) {
  for (const char* here : {"127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/run/c"}) {
    EXPECT_TRUE(Parse({"--control", here}).ok()) << here;
  }
  const std::vector<std::string> tls = {"--tls-cert=/c", "--tls-key=/k", "--tls-ca=a.example=/a"};
  for (const std::string there : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "cairn.example:1"}) {
    EXPECT_THAT(ErrorOf({"--control", there}),
                HasSubstr("control is " + there + ", without TLS, and plaintext is loopback"));
    EXPECT_THAT(ErrorOf({"--admin", there}), HasSubstr("admin is " + there + ", without TLS"));
    EXPECT_TRUE(Parse({"--control", there, "--plaintext=anywhere"}).ok()) << there;
    std::vector<std::string> flags = tls;
    flags.insert(flags.end(), {"--plaintext=refuse", "--control", there});
    EXPECT_TRUE(Parse(flags).ok()) << ErrorOf(flags);
    flags.insert(flags.end(), {"--admin", there});
    EXPECT_THAT(ErrorOf(flags), HasSubstr("set policy, which says who is an operator"));
  }
  EXPECT_THAT(ErrorOf({"--plaintext=refuse"}), HasSubstr("plaintext is refuse"));
  EXPECT_THAT(ErrorOf({"--control=unix:/c", "--plaintext=refuse", "--data=127.0.0.1:7"}),
              HasSubstr("which is plain text (UCX)"));
  EXPECT_THAT(ErrorOf({"--tls-cert=/c"}), HasSubstr("set all three, or none"));
  EXPECT_THAT(ErrorOf({"--tls-crl=/c"}), HasSubstr("tls-crl is set, and tls-cert is not"));
  EXPECT_THAT(ErrorOf({"--tls-ca=a.example=b"}), HasSubstr("tls-ca (from flag)"));
}

TEST_F(ConfigFile, FlagWinsOverEnvironmentOverFile) {
  const std::string path = Write("lanes: 3\npath-threads: 3\nwindow: 3\n# comment\n");
  const auto line =
      Parse({"--config", path, "--window=5"}, {{"CAIRN_PATH_THREADS", "4"}, {"CAIRN_WINDOW", "4"}});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.lanes, 3u);
  EXPECT_EQ(line->config.path_threads, 4u);
  EXPECT_EQ(line->config.window, 5u);
  EXPECT_EQ(line->sources.at("lanes"), Source::kFile);
  EXPECT_EQ(line->sources.at("path-threads"), Source::kEnvironment);
  EXPECT_EQ(line->sources.at("window"), Source::kFlag);
}

TEST_F(ConfigFile, WhatIsPrintedReadsBackEqual) {
  const auto first =
      Parse({"--host-bytes", "6442450945", "--http", "[::1]:0", "--data", "10.0.0.1:7"});
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Parse({"--config", Write(PrintConfig(*first))});
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->config.host_bytes, 6442450945u);
  EXPECT_EQ(second->config.http.ToString(), "[::1]:0");
  EXPECT_EQ(second->config.data.ToString(), "10.0.0.1:7");
}

TEST_F(ConfigFile, ErrorsNameTheFieldTheSourceAndTheLimit) {
  EXPECT_EQ(ErrorOf({"--host-bytes", "4GB"}).find("host-bytes (from flag): '4GB'"), 0u);
  EXPECT_THAT(ErrorOf({"--host-bytes", "1"}), HasSubstr("bytes from 16MiB to 4TiB"));
  EXPECT_THAT(ErrorOf({}, {{"CAIRN_LANES", "-1"}}), HasSubstr("lanes (from environment): '-1'"));
  EXPECT_THAT(ErrorOf({"--config", Write("lanes: 65\n")}), HasSubstr("lanes (from file): '65'"));
  EXPECT_THAT(ErrorOf({"--config", Write("lanez: 1\n")}),
              HasSubstr("'lanez' is unknown (did you mean lanes?)"));
  EXPECT_THAT(ErrorOf({"--config", Write("lanes: [1]\n")}), HasSubstr("line 1"));
  EXPECT_THAT(ErrorOf({"--config", Write("lanes: 1\nlanes: 2\n")}), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf({"--config", "/nonexistent/x"}), HasSubstr("/nonexistent/x"));
  EXPECT_THAT(ErrorOf({"--recipe", "kivi:3"}), HasSubstr("takes raw, kivi:8,"));
  EXPECT_THAT(ErrorOf({"--control", "off"}), HasSubstr("control"));
  EXPECT_THAT(ErrorOf({"--control", "127.0.0.1:65536"}), HasSubstr("65535"));
  EXPECT_THAT(ErrorOf({"--control", "unix:"}), HasSubstr("control"));
  EXPECT_THAT(ErrorOf({"--control", "unix:off"}), HasSubstr("control"));
  EXPECT_THAT(ErrorOf({"--control", "unix:here/control.sock"}), HasSubstr("unix:PATH"));
  EXPECT_THAT(ErrorOf({"--socket", "relative"}), HasSubstr("socket"));
  EXPECT_THAT(ErrorOf({"--map=on", "--socket=off", "--data=127.0.0.1:7"}),
              HasSubstr("map is on and socket is off"));
  EXPECT_THAT(ErrorOf({"--huge-pages", "off"}),
              HasSubstr("huge-pages (from flag): 'off': not one of them; takes auto or required"));
  EXPECT_THAT(ErrorOf({"--ssd-io", ""}), HasSubstr("takes auto, uring or threads"));
  EXPECT_THAT(ErrorOf({"--log-level", "loud\n"}), HasSubstr("'loud\\n'"));
}

TEST_F(ConfigFile, FoldersOfTheSsdTierAreAListWithTheirBudgets) {
  EXPECT_TRUE(ParseSsd(Parse({})->config.ssd)->empty());
  const auto flags = Parse({"--ssd", "/a=1GiB", "--ssd=/b=c/=2GiB", "--ssd-io", "threads"},
                           {{"CAIRN_SSD", "/x=1GiB"}});
  ASSERT_TRUE(flags.ok()) << flags.status();
  EXPECT_EQ(flags->config.ssd_io, "threads");
  EXPECT_EQ(flags->config.ssd_placement, "chain");
  EXPECT_EQ(Parse({"--ssd-placement=stripe"})->config.ssd_placement, "stripe");
  const auto folders = ParseSsd(flags->config.ssd);
  ASSERT_TRUE(folders.ok());
  ASSERT_EQ(folders->size(), 2u) << "flags win over the environment";
  EXPECT_EQ((*folders)[0].path, "/a");
  EXPECT_EQ((*folders)[0].budget_bytes, 1_GiB);
  EXPECT_EQ((*folders)[1].path, "/b=c");
  EXPECT_EQ((*folders)[1].budget_bytes, 2_GiB);
  const auto read_back = Parse({"--config", Write(PrintConfig(*flags))});
  ASSERT_TRUE(read_back.ok()) << read_back.status();
  EXPECT_EQ(read_back->config.ssd, flags->config.ssd);
  const auto environment = Parse({}, {{"CAIRN_SSD", "/x=1GiB,/y=2GiB"}});
  ASSERT_TRUE(environment.ok()) << environment.status();
  EXPECT_EQ(ParseSsd(environment->config.ssd)->size(), 2u);
  for (const char* wrong : {"", "/a", "a=1GiB", "/=1GiB", "/a=1", "/a=1GiB,/a/=1GiB", "/a=1GiB,"}) {
    EXPECT_THAT(ErrorOf({"--ssd", wrong}), HasSubstr("PATH=BYTES, the path absolute")) << wrong;
  }
  EXPECT_THAT(ErrorOf({"--ssd-io", "aio"}), HasSubstr("auto, uring or threads"));
  EXPECT_THAT(ErrorOf({"--ssd-placement", "raid"}), HasSubstr("chain or stripe"));
}

TEST(Config, AGpuIsADeviceWithItsBytes) {
  EXPECT_EQ(ParseGpu(Parse({})->config.gpu)->has_value(), false);
  const auto line = Parse({"--gpu", "3=2GiB"});
  ASSERT_TRUE(line.ok()) << line.status();
  const auto gpu = ParseGpu(line->config.gpu);
  ASSERT_TRUE(gpu.ok() && gpu->has_value());
  EXPECT_EQ((*gpu)->device, 3u);
  EXPECT_EQ((*gpu)->bytes, 2_GiB);
  for (const char* wrong :
       {"", "0", "=1GiB", "-1=1GiB", "64=1GiB", "0=63MiB", "0=2TiB", "0=1GiB,1=1GiB"}) {
    EXPECT_THAT(ErrorOf({"--gpu", wrong}), HasSubstr("takes DEVICE=BYTES")) << wrong;
  }
}

TEST(Config, RatesOfTheSsdTier) {
  const auto none = Parse({});
  EXPECT_EQ(ParseScrubRate(none->config.ssd_scrub_rate).value(), std::nullopt);
  EXPECT_EQ(ParseWriteBudget(none->config.ssd_write_budget)->bytes, 0u);
  EXPECT_EQ(ParseScrubRate("0").value(), 0u);
  EXPECT_EQ(ParseScrubRate("10MiB").value(), 10_MiB);
  EXPECT_EQ(ParseWriteBudget("500GiB")->bytes, 500_GiB);
  EXPECT_EQ(ParseWriteBudget("150%")->percent, 150u);
  for (const char* wrong : {"", "2GiB", "fast", "-1"}) {
    EXPECT_THAT(ErrorOf({"--ssd-scrub-rate", wrong}), HasSubstr("bytes a second")) << wrong;
  }
  for (const char* wrong : {"", "1MiB", "0%", "10001%", "%", "1.5%", "2000TiB"}) {
    EXPECT_THAT(ErrorOf({"--ssd-write-budget", wrong}), HasSubstr("bytes a day")) << wrong;
  }
}

TEST_F(ConfigFile, TheIndexHasABudgetOrOneThatFollows) {
  EXPECT_EQ(*ParseIndexBytes(Parse({})->config.index_bytes), std::nullopt);
  EXPECT_EQ(*ParseIndexBytes(Parse({"--index-bytes", "1GiB"})->config.index_bytes), 1_GiB);
  for (const char* wrong : {"", "much", "15MiB", "2TiB"}) {
    EXPECT_THAT(ErrorOf({"--index-bytes", wrong}), HasSubstr("auto, or bytes from 16MiB to 1TiB"))
        << wrong;
  }
  EXPECT_EQ(limits::AwakeBytesMax(16_GiB, 64_MiB), 32_MiB) << "half is for what is on drives only";
  EXPECT_EQ(limits::AwakeBytesMax(16_MiB, 1_GiB), 1024 * limits::kIndexBytesAwake);
}

TEST(Config, WrongFlagsAreErrors) {
  EXPECT_THAT(ErrorOf({"--nope"}), HasSubstr("'--nope' is unknown"));
  EXPECT_THAT(ErrorOf({"lanes"}), HasSubstr("is not a flag"));
  EXPECT_THAT(ErrorOf({"--lanes"}), HasSubstr("needs a value"));
  EXPECT_THAT(ErrorOf({"--lanes", "1", "--lanes", "2"}), HasSubstr("given twice"));
  EXPECT_THAT(ErrorOf({"--check-config=1"}), HasSubstr("unknown"));
}

TEST_F(ConfigFile, EveryErrorIsNamed) {
  const std::string path = Write("lanez: 1\nlanes: 65\n");
  const std::string errors =
      ErrorOf({"--nope", "1", "--host-bytes=4GB", "--config", path, "--window", "0", "stray"},
              {{"CAIRN_DRAIN_MS", "soon"}});
  EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 6) << errors;
  for (const char* error :
       {"flag '--nope' is unknown", "argument 'stray' is not a flag", "'lanez' is unknown",
        "lanes (from file): '65'", "host-bytes (from flag)", "window (from flag): '0'",
        "drain-ms (from environment): 'soon'"}) {
    EXPECT_THAT(errors, HasSubstr(error));
  }
}

TEST_F(ConfigFile, ASecondDocumentIsRefused) {
  EXPECT_THAT(ErrorOf({"--config", Write("lanes: 1\n---\nlanes: 2\n")}),
              HasSubstr("a second YAML document"));
  EXPECT_EQ(ErrorOf({"--config", Write("---\nlanes: 1\n")}), "");
}

TEST(Config, RowsAreCheckedTogether) {
  EXPECT_THAT(ErrorOf({"--region-bytes", "17GiB"}), HasSubstr("regions-bytes"));
  EXPECT_THAT(ErrorOf({"--socket", "off"}), HasSubstr("no data plane"));
  EXPECT_EQ(ErrorOf({"--socket", "off", "--data", "127.0.0.1:0"}), "");
}

TEST(Config, EtcdHasTlsAndAUser) {
  const auto with = [](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--members=etcd:e:2379", "--peer=127.0.0.1:50160", "--etcd-ca=/ca"});
    return ErrorOf(std::move(flags));
  };
  EXPECT_EQ(
      with({"--etcd-cert=/c", "--etcd-key=/k", "--etcd-user=cairn", "--etcd-password-file=/p"}),
      "");
  EXPECT_THAT(with({"--etcd-cert=/c"}), HasSubstr("etcd-cert and etcd-key: set both, or none"));
  EXPECT_THAT(with({"--etcd-key=/k"}), HasSubstr("etcd-cert and etcd-key: set both, or none"));
  EXPECT_THAT(with({"--etcd-user=a"}), HasSubstr("etcd-user and etcd-password-file: set both"));
  EXPECT_THAT(with({"--etcd-password-file=/p"}), HasSubstr("etcd-user and etcd-password-file"));
  EXPECT_THAT(with({"--etcd-user=a:b"}), HasSubstr("1 to 253 characters"));
  EXPECT_THAT(with({"--etcd-password-file=secret"}), HasSubstr("absolute"));
  EXPECT_THAT(ErrorOf({"--members=etcd:127.0.0.1:1", "--peer=127.0.0.1:2", "--etcd-cert=/c",
                       "--etcd-key=/k"}),
              HasSubstr("etcd-cert is set, and etcd-ca is not"));
  for (const char* name : {"ca", "cert", "key", "user", "password-file"}) {
    EXPECT_THAT(ErrorOf({absl::StrCat("--etcd-", name, "=/x"), "--members=file:/m",
                         "--peer=127.0.0.1:50160"}),
                HasSubstr(absl::StrCat("etcd-", name)));
  }
  EXPECT_THAT(ErrorOf({"--etcd-ca=/x"}), HasSubstr("etcd-ca is set, and members names no etcd"));
}

TEST(Config, AClusterIsASourceAndAPort) {
  const auto with = [](std::vector<std::string> flags) {
    flags.push_back("--peer=127.0.0.1:50160");
    return ErrorOf(std::move(flags));
  };
  const auto line = Parse({"--members=file:/etc/members", "--peer=127.0.0.1:50160"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->config.cluster, "cairn");
  EXPECT_EQ(line->config.member_grace_s, 120u);
  EXPECT_FALSE(Parse({})->config.peer.enabled());
  EXPECT_EQ(with({"--members=dns:cairn.serving.svc:50160"}), "");
  EXPECT_EQ(with({"--members=etcd:127.0.0.1:2379,[::1]:2379"}), "");
  EXPECT_EQ(with({"--members=kubernetes:serving/cairn-members"}), "");
  EXPECT_EQ(with({"--members=kubernetes:serving/cairn-members:50155"}), "");
  EXPECT_THAT(with({"--members=etcd:10.0.0.9:2379"}), HasSubstr("spoken to without TLS"));
  EXPECT_EQ(with({"--members=etcd:10.0.0.9:2379", "--etcd-ca=/ca"}), "");
  EXPECT_THAT(
      ErrorOf({"--members=etcd:127.0.0.1:2379", "--peer=0.0.0.0:50160", "--plaintext=anywhere"}),
      HasSubstr("the address that other members are told"));
  EXPECT_THAT(with({}), HasSubstr("members and peer: set both, or none"));
  EXPECT_THAT(ErrorOf({"--members=file:/m"}), HasSubstr("members and peer: set both, or none"));
  for (const char* bad : {"file:m",
                          "file:off",
                          "file:",
                          "dns:",
                          "dns:cairn",
                          "dns:cairn:0",
                          "dns:[::1]:7",
                          "etcd:",
                          "etcd:off",
                          "etcd:a:0",
                          "etcd:a:1,",
                          "gossip:x",
                          "on",
                          "",
                          "kubernetes:",
                          "kubernetes:a",
                          "kubernetes:a/",
                          "kubernetes:/b",
                          "kubernetes:a/b/c",
                          "kubernetes:a/b:0",
                          "kubernetes:a/b:",
                          "kubernetes:a:1/b"}) {
    EXPECT_THAT(with({absl::StrCat("--members=", bad)}), HasSubstr("takes file:PATH")) << bad;
  }
  EXPECT_THAT(with({"--members=file:/m", "--member-name=a b"}), HasSubstr("1 to 253 characters"));
  EXPECT_THAT(with({"--members=file:/m", "--cluster=a/b"}), HasSubstr("1 to 64 characters"));
  const std::vector<std::string> there = {"--members=file:/m", "--peer=10.0.0.1:50160"};
  EXPECT_THAT(ErrorOf(there), HasSubstr("peer is 10.0.0.1:50160, without TLS"));
  std::vector<std::string> tls = there;
  tls.insert(tls.end(), {"--tls-cert=/c", "--tls-key=/k", "--tls-ca=/a"});
  EXPECT_THAT(ErrorOf(tls), HasSubstr("with TLS: set policy, which says who is a member"));
  tls.push_back("--policy=/p");
  EXPECT_EQ(ErrorOf(tls), "");
  EXPECT_THAT(ErrorOf({"--members=file:/m", "--peer=127.0.0.1:50160", "--policy=/p"}),
              HasSubstr("a member can then not prove that it is one"));
  EXPECT_THAT(ErrorOf({"--members=file:/m", "--peer=127.0.0.1:50160", "--policy=/p",
                       "--tls-cert=/c", "--tls-key=/k", "--tls-ca=/a,b.example=/b"}),
              HasSubstr("tls-ca names several bundles"));
}

TEST(Config, ForeignVariablesAreReportedAndNotRefused) {
  const auto line = Parse({}, {{"CAIRN_SERVICE_HOST", "10.0.0.1"},
                               {"CAIRN_CODEC_BACKEND", "avx2"},
                               {"CAIRN_CRC_BACKEND", "sse42"}});
  ASSERT_TRUE(line.ok());
  EXPECT_THAT(line->unknown_variables, ElementsAre("CAIRN_SERVICE_HOST"));
}

TEST(Config, EveryKnobIsInTheHelp) {
  const std::string help = HelpText();
  const auto line = Parse({});
  ASSERT_TRUE(line.ok());
  for (const auto& [name, source] : line->sources) {
    EXPECT_THAT(help, HasSubstr("--" + name + " (CAIRN_")) << name;
  }
  EXPECT_EQ(Parse({"--help"})->action, Action::kHelp);
  EXPECT_EQ(Parse({"--version"})->action, Action::kVersion);
  EXPECT_EQ(Parse({"--check-config"})->action, Action::kCheckConfig);
  EXPECT_EQ(Parse({"--print-config"})->action, Action::kPrintConfig);
}

TEST(ConfigFileText, HostileTextsAreErrors) {
  EXPECT_FALSE(ParseConfigFile(std::string(65537, ' ')).ok());
  EXPECT_FALSE(ParseConfigFile(std::string("a: b\0", 5)).ok());
  EXPECT_FALSE(ParseConfigFile(std::string(30000, '[')).ok());
  EXPECT_FALSE(ParseConfigFile(std::string(30000, '{')).ok());
  EXPECT_FALSE(ParseConfigFile("- a\n- b\n").ok());
  EXPECT_FALSE(ParseConfigFile("? [a]\n: b\n").ok());
  EXPECT_FALSE(ParseConfigFile("a: *b\n").ok());
  EXPECT_FALSE(ParseConfigFile("just text").ok());
  EXPECT_FALSE(ParseConfigFile(",").ok()) << "yaml-cpp reads documents of it without end";
  EXPECT_FALSE(ParseConfigFile("a: b\n...\n,:").ok());
  EXPECT_TRUE(ParseConfigFile("").ok());
  EXPECT_TRUE(ParseConfigFile("# nothing\n").ok());
}

}  // namespace
}  // namespace cairn
