// SPDX-License-Identifier: Apache-2.0
// cairnctl against a real cairnd.
#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/block_key.h"
#include "tests/e2e/client/client_fixture.h"
#include "tests/support/run_command.h"
#include "tests/support/side_object_bytes.h"
#include "tests/support/temp_dir.h"

namespace cairn {
namespace {

using testing::HasSubstr;

class CliTest : public ClientTest {
 protected:
  void SetUp() override {
    client_ = Connect(Options("acme"));
    space_ = Open(client_, ToyIdentity(codecs::DType::kBf16, Model()), "kivi:4");
    ASSERT_TRUE(client_ && space_);
    source_ = ToyValues(codecs::DType::kBf16, *space_->SourceBytes({}), 1);
    keys_ = space_->DeriveChain(ToyTokens(2));
    ASSERT_TRUE(space_->Put({.key = keys_[0], .source = SourceBytes{source_}}).ok());
    ASSERT_TRUE(space_
                    ->Put({.key = keys_[1],
                           .parent = keys_[0],
                           .first_position = kTokens,
                           .source = SourceBytes{source_}})
                    .ok());
  }
  std::string Space_() const {
    return " --space " + proto::Hex(space_->fingerprint()).substr(0, 12);
  }

  Ran Run(const std::string& words) const {
    return RunCommand(
        absl::StrCat(CAIRNCTL_PATH, " ", words, " --control ", daemon_->endpoint("control")));
  }

  std::unique_ptr<Client> client_;
  std::unique_ptr<Space> space_;
  std::vector<std::byte> source_;
  std::vector<BlockKey> keys_;
  TempDir folder_;
};

TEST_F(CliTest, StatusAndSpacesShowWhatIsThere) {
  Ran ran = Run("status");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("host"));
  EXPECT_THAT(ran.output, HasSubstr("QUARANTINE"));
  EXPECT_THAT(ran.output, HasSubstr(" of KV, kept in "));
  EXPECT_THAT(ran.output, HasSubstr("x smaller)"));
  EXPECT_THAT(ran.output, HasSubstr("\ngets of its host are mapped\n"));
  EXPECT_THAT(Run("doctor").output, testing::ContainsRegex("ok +gets of its host +mapped"));
  ran = Run("status --json");
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("\"tier\": \"host\""));
  ran = Run("spaces");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("acme"));
  EXPECT_THAT(ran.output, HasSubstr("kv 4x4x(32+32)"));
  EXPECT_THAT(Run("spaces --json").output, HasSubstr(proto::Hex(space_->fingerprint())));
}

TEST_F(CliTest, VersionNamesAllRecipesOfSpaces) {
  const std::string text = RunCommand(CAIRNCTL_PATH " version").output;
  for (const char* recipe : {"raw, ", "exact, ", "patternkv:4, ", "cairn:BITS"}) {
    EXPECT_THAT(text, HasSubstr(recipe));
  }
}

TEST_F(CliTest, DoctorLooksAtTheMachineAndTheDaemon) {
  const Ran ran = Run("doctor");
  EXPECT_EQ(ran.code, 0) << ran.output;
  for (const char* check :
       {"processor", "huge pages", "shared memory", "io_uring", "clock", "ucx", "gpu"}) {
    EXPECT_THAT(ran.output, HasSubstr(check));
  }
  EXPECT_THAT(ran.output, testing::ContainsRegex("ok    daemon +cairnd [0-9.]+ at 127"));
  EXPECT_THAT(ran.output, testing::ContainsRegex("(--    gpu +none: )|(ok    gpu +0)"));
  const Ran failed = Run("doctor --json /dev/shm");
  EXPECT_EQ(failed.code, 1) << failed.output;
  EXPECT_THAT(failed.output, HasSubstr("\"verdict\": \"fail\""));
  EXPECT_THAT(failed.output, HasSubstr("folder /dev/shm"));
  // Without a daemon it looks at the machine; one that was named has to answer.
  const std::string alone = absl::StrCat("env -u CAIRN_CONTROL ", CAIRNCTL_PATH, " doctor");
  EXPECT_THAT(RunCommand(alone).output, HasSubstr("processor"));
  EXPECT_EQ(RunCommand(absl::StrCat(CAIRNCTL_PATH, " doctor --control 127.0.0.1:1")).code, 1);
}

TEST_F(CliTest, TheHttpPortIsNamedAsWhatItIs) {
  const Ran ran =
      RunCommand(absl::StrCat(CAIRNCTL_PATH, " status --control ", daemon_->endpoint("http")));
  EXPECT_EQ(ran.code, 4) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("that is an HTTP port"));
}

TEST_F(CliTest, AMistypedRecipeHasANearestName) {
  const Ran ran = Run("policy --recipe exat" + Space_());
  EXPECT_EQ(ran.code, 2) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("recipe 'exat' is unknown (did you mean exact?)"));
}

TEST_F(CliTest, WhoIsNoOperatorIsToldSo) {
  const std::string other =
      absl::StrCat("setpriv --reuid=65534 --regid=65534 --clear-groups ", CAIRNCTL_PATH, " ");
  if (RunCommand(other + "version").code != 0) GTEST_SKIP() << "cannot be another user here";
  const std::string control = " --control " + daemon_->endpoint("control");
  const Ran refused = RunCommand(other + "tier" + control);
  EXPECT_EQ(refused.code, 1) << refused.output;
  EXPECT_THAT(refused.output, HasSubstr("which only its own user and root enter"));
  const Ran status = RunCommand(other + "status" + control);
  EXPECT_EQ(status.code, 0) << status.output;
  EXPECT_THAT(status.output, HasSubstr("not shown: the daemon answers operators at"));
  EXPECT_THAT(status.output, testing::Not(HasSubstr("block"))) << "of whose tenant it is none";
  // Named, the address is not asked for.
  const Ran named = Run("tier --admin " + daemon_->endpoint("admin"));
  EXPECT_EQ(named.code, 0) << named.output;
}

TEST_F(CliTest, BashCompletesCommandsAndFlags) {
  const auto completed = [](const std::string& words, int at) {
    return RunCommand(absl::StrCat("bash -c 'source <(", CAIRNCTL_PATH,
                                   " completion); COMP_WORDS=(cairnctl ", words,
                                   "); COMP_CWORD=", at, "; _cairnctl; echo ${COMPREPLY[@]}'"))
        .output;
  };
  EXPECT_EQ(completed("dr", 1), "drain\n");
  EXPECT_EQ(completed("get --o", 2), "--out\n");
  EXPECT_EQ(completed("drain --con", 2), "--control\n");
  EXPECT_EQ(completed("get some", 2), "\n");
}

TEST_F(CliTest, TopShowsRatesOfAnInterval) {
  std::atomic<bool> is_over = false;
  std::thread load([&] {
    std::vector<std::byte> target(source_.size());
    while (!is_over) {  // ends: the test says so
      EXPECT_TRUE(space_->Get({.key = keys_[0], .target = SourceTarget{target}}).ok());
      EXPECT_TRUE(space_->Match({.keys = keys_, .is_counting = true}).ok());
    }
  });
  const Ran text = Run("top --once --interval 1");
  const Ran json = Run("top --once --interval 1 --json");
  is_over = true;
  load.join();
  EXPECT_EQ(text.code, 0) << text.output;
  for (const char* part : {"cairnd ", "100.0 % of them found", "HITS/S", "acme", "MORE/S"}) {
    EXPECT_THAT(text.output, HasSubstr(part));
  }
  EXPECT_EQ(json.code, 0) << json.output;
  EXPECT_THAT(json.output, HasSubstr("\"hit_ratio\": 1"));
  EXPECT_THAT(json.output, testing::ContainsRegex("\"gets_per_second\": [1-9]"));
  EXPECT_THAT(json.output, testing::ContainsRegex("\"sent_bytes_per_second\": [1-9]"));
}

TEST_F(CliTest, LsAndInspectShowBlocks) {
  const Ran listed = Run("ls" + Space_());
  EXPECT_EQ(listed.code, 0) << listed.output;
  for (const BlockKey& key : keys_) {
    EXPECT_THAT(listed.output, HasSubstr(proto::Hex(key)));
    const Ran inspected = Run("inspect " + proto::Hex(key) + Space_());
    EXPECT_EQ(inspected.code, 0) << inspected.output;
    EXPECT_THAT(inspected.output, HasSubstr("complete  yes"));
    EXPECT_THAT(inspected.output, HasSubstr("kivi:4"));
  }
  const Ran first = Run("ls --limit 1 --json" + Space_());
  EXPECT_THAT(first.output, HasSubstr("\"more\": true"));
  const Ran absent = Run("inspect " + std::string(64, '1') + Space_());
  EXPECT_EQ(absent.code, 3) << absent.output;
}

TEST_F(CliTest, AnImageGoesOutToAFileAndBackIn) {
  const std::string file = folder_.File("block.ckvi");
  const std::string key = proto::Hex(keys_[0]);
  Ran ran = Run("get " + key + " --out " + file + Space_());
  ASSERT_EQ(ran.code, 0) << ran.output;
  ran = Run("inspect " + file);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("all match"));
  EXPECT_THAT(Run("inspect --json --tiles " + file).output, HasSubstr("\"intact\": true"));
  EXPECT_EQ(Run("verify " + file).code, 0);

  EXPECT_EQ(Run("delete " + key + Space_()).code, 0);
  EXPECT_EQ(Run("delete " + key + Space_()).code, 3);
  EXPECT_EQ(Run("get " + key + " --out " + folder_.File("none") + Space_()).code, 3);
  ran = Run("put " + file);
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("stored"));
  EXPECT_THAT(Run("put " + file).output, HasSubstr("was there already"));

  ran = Run("get " + key + " --source --layers 1:3 --heads 2 --out " + file + ".raw" + Space_());
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_EQ(std::ifstream(file + ".raw", std::ios::ate).tellg(), 2 * kTokens * kDim * 2 * 2);

  {
    std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
    damaged.seekp(-5, std::ios::end);
    damaged.put('!');
  }
  EXPECT_EQ(Run("verify " + file).code, 5);
  EXPECT_EQ(Run("inspect " + file).code, 5);
  EXPECT_EQ(Run("put " + file).code, 5);
}

TEST_F(CliTest, VerifyChecksTheWholeDaemon) {
  const Ran ran = Run("verify --json");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("\"corrupt_images\": 0"));
  EXPECT_THAT(ran.output, HasSubstr("\"done\": true"));
  EXPECT_EQ(Run("delete --all" + Space_()).code, 0);
  EXPECT_EQ(Run("delete --all").code, 2);
}

TEST_F(CliTest, ProfilesAndBanksAreInstalledAndShown) {
  const codecs::ProfileShape shape = {
      .layers = kLayers, .heads = kHeads, .k_dim = kDim, .v_dim = kDim};
  for (const SideObjectCase& side : {kProfileCase, kBankCase}) {
    const auto bytes = SideObjectBytes(side.kind, 1, shape);
    const Digest digest = proto::SideObjectId(bytes);
    const std::string id = proto::Hex(std::as_bytes(std::span(digest)));
    const std::string path = folder_.File("model.profile");
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()),
               static_cast<std::streamsize>(bytes.size()));
    const Ran installed = Run("profile install " + path + Space_());
    EXPECT_EQ(installed.code, 0) << installed.output;
    EXPECT_THAT(installed.output, HasSubstr(id + ": group 0 is coded with it"));
    EXPECT_THAT(Run("profile install " + path + Space_()).output, HasSubstr("was there already"));
    const Ran shown = Run("profile show" + Space_());
    EXPECT_EQ(shown.code, 0);
    EXPECT_THAT(shown.output, HasSubstr(absl::StrCat(id, "  ", proto::Name(side.kind))));
    EXPECT_THAT(shown.output, HasSubstr("installed"));
    EXPECT_THAT(Run("profile show --json" + Space_()).output,
                HasSubstr("\"current_groups\": \"0\""));
    EXPECT_EQ(Run("profile install " + path + " --group 1" + Space_()).code, 2);
  }
  EXPECT_EQ(Run("profile install /no/such/file" + Space_()).code, 3);
  EXPECT_EQ(Run("profile remove" + Space_()).code, 2);
}

TEST_F(CliTest, ADaemonBehindAUnixSocketIsReached) {
  const auto daemon =
      DaemonProcess::Start({"--control=unix:" + folder_.File("control.sock"), "--map=off"});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const std::string control = " --control " + (*daemon)->endpoint("control") + " #";
  const Ran status = Run("status" + control);
  EXPECT_EQ(status.code, 0);
  EXPECT_THAT(status.output, HasSubstr("gets of its host are copied: --map is off\n"));
  EXPECT_EQ(Run("verify" + control).code, 0);
  EXPECT_EQ(Run("status --control unix:" + folder_.File("nobody.sock") + " #").code, 4);
}

TEST_F(CliTest, ADaemonThatDrainsIsLookedAt) {
  const auto daemon = DaemonProcess::Start({});
  ASSERT_TRUE(daemon.ok()) << daemon.status();
  const std::string control = " --control " + (*daemon)->endpoint("control") + " 2>&1 #";
  const auto client = Client::Connect({.control = (*daemon)->endpoint("control")});
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->OpenSpace(ToyIdentity(codecs::DType::kBf16, Model()), "raw").ok());
  EXPECT_EQ(Run("drain" + control).code, 0);
  const Ran status = Run("status" + control);
  EXPECT_EQ(status.code, 0) << status.output;
  EXPECT_THAT(status.output, HasSubstr(", DRAINING\n"));
  EXPECT_THAT(status.output, HasSubstr("\n1 session, 0 leases\n")) << "cairnctl opens none";
  const Ran refused = Run("events" + control);
  EXPECT_EQ(refused.code, 4);
  EXPECT_THAT(refused.output, HasSubstr("draining: no new sessions"));
  EXPECT_THAT(refused.output, testing::Not(HasSubstr("Is cairnd running")));
}

TEST_F(CliTest, SpacesHaveNames) {
  const std::string model = space_->identity().model;
  const std::string fingerprint = proto::Hex(space_->fingerprint());
  for (const std::string& name : {"acme/" + model, model, fingerprint.substr(0, 4), fingerprint}) {
    EXPECT_EQ(Run("ls --space " + name).code, 0) << name;
  }
  const Ran none = Run("ls --space acme/nothing");
  EXPECT_EQ(none.code, 3);
  EXPECT_THAT(none.output, HasSubstr(fingerprint.substr(0, 12) + "  acme/" + model));
  auto other = Open(client_, ToyIdentity(codecs::DType::kFp16, model), "raw");
  ASSERT_TRUE(other);
  const Ran several = Run("ls --space acme/" + model);
  EXPECT_EQ(several.code, 2);
  EXPECT_THAT(several.output, HasSubstr("names several spaces"));
  EXPECT_THAT(several.output, HasSubstr(proto::Hex(other->fingerprint()).substr(0, 12)));
}

TEST_F(CliTest, NearNamesAreGuessed) {
  EXPECT_THAT(Run("statsu").output, HasSubstr("did you mean status?"));
  EXPECT_THAT(Run("status --jsno").output, HasSubstr("did you mean --json?"));
  EXPECT_THAT(Run("nonsense").output, testing::Not(HasSubstr("did you mean")));
}

TEST_F(CliTest, WrongUsageAndAbsentDaemonsHaveTheirCodes) {
  EXPECT_EQ(Run("nonsense").code, 2);
  EXPECT_EQ(Run("get").code, 2);
  EXPECT_EQ(Run("status --colour").code, 2);
  EXPECT_EQ(Run("inspect /no/such/file").code, 3);
  EXPECT_EQ(Run("ls --space 999999").code, 3);
  EXPECT_EQ(Run("ls --limit 0" + Space_()).code, 2);
  const Ran missed = Run("get " + std::string(64, '7') + " --out /dev/null" + Space_());
  EXPECT_EQ(missed.code, 3);
  EXPECT_THAT(missed.output, HasSubstr("no block 7777"));
  for (const char* command : {"status", "spaces", "ls", "inspect", "get", "put", "delete", "verify",
                              "profile", "version"}) {
    const Ran help = Run(absl::StrCat(command, " --help"));
    EXPECT_EQ(help.code, 0);
    EXPECT_THAT(help.output, HasSubstr(absl::StrCat("usage: cairnctl ", command)));
    EXPECT_THAT(help.output, HasSubstr("--json"));
  }
  EXPECT_THAT(Run("ls -h").output, HasSubstr("usage: cairnctl ls"));
  EXPECT_THAT(Run("help put").output, HasSubstr("usage: cairnctl put"));
  EXPECT_THAT(Run("ls --colour").output, HasSubstr("'cairnctl ls --help' lists them"));
  EXPECT_THAT(Run("--json status").output, HasSubstr("flags come after the command"));
  const Ran no_image = Run("inspect " CAIRN_SOURCE_DIR "/LICENSE");
  EXPECT_EQ(no_image.code, 5);
  EXPECT_THAT(no_image.output, HasSubstr("not an intact image: bad magic"));
  const Ran nobody = Run("status --control 127.0.0.1:1 2>&1 #");
  EXPECT_EQ(nobody.code, 4);
  EXPECT_THAT(nobody.output, HasSubstr("Is cairnd running"));
}

}  // namespace
}  // namespace cairn
