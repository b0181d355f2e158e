//! A call of a `soft` mount to a dead server fails with EIO (`softerr`: ETIMEDOUT). It fails after
//! `retrans` retransmissions of `timeo` tenths of a second, as nfs(5) says. The mount works again
//! when the server does.

use super::{EVERY, Scenario, Stage};
use crate::clock;
use crate::lab::{Fail, Res};
use std::time::Duration;

pub const SCENARIO: Scenario = Scenario { name: "soft", versions: EVERY, quick: false, play };

/// Promise: 23
fn play(stage: &Stage<'_>) -> Res<()> {
    for (option, error) in [("soft", "EIO"), ("softerr", "ETIMEDOUT")] {
        let mount = stage.mount(0, &format!("{option},timeo=20,retrans=1"))?;
        let dir = stage.directory(&mount)?;
        let limit = Duration::from_secs(60);
        stage.server().freeze(true)?;
        let program = format!(
            "import os, errno\n\
             try: os.stat('{}/never-seen-é')\n\
             except OSError as e: print(errno.errorcode[e.errno])",
            dir.display()
        );
        let begun = clock::now();
        let mut said = String::new();
        let code =
            mount.run(&format!("/usr/bin/python3 -c \"{program}\""), limit, |l| said = l.to_string())?;
        let secs = begun.elapsed().as_secs_f64();
        stage.say(&format!("{option}: {said} after {secs:.1} s"));
        stage.server().freeze(false)?;
        if code != 0 || said != error || !(1.0..40.0).contains(&secs) {
            return Err(Fail(format!(
                "{option}: got {said:?} (code {code}) after {secs:.1} s, want {error}"
            )));
        }
        let mut again = 1;
        clock::wait_until(limit, || {
            again = mount.run(&format!("echo x >{}/after", dir.display()), limit, |_| ()).unwrap_or(1);
            again == 0
        });
        if again != 0 {
            return Err(Fail(format!("{option}: the mount does not work again when the server does")));
        }
        mount.umount()?;
    }
    Ok(())
}
