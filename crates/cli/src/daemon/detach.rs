//! A process in the background.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use semel_daemon::home::HomeFile;
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::exit::{Exit, Failure};
use crate::{print, progress};

/// How long it may take until it is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// The same command again in the background, without `--detach`, its log in its folder.
pub(crate) async fn detach(folder: &Path, arguments: &[String]) -> Result<(), Failure> {
    let failed = |text: String| Failure::new(Exit::Failed, format!("error: {text}"));
    let program = std::env::current_exe().map_err(|error| failed(error.to_string()))?;
    let kept = arguments.iter().filter(|argument| *argument != "--detach");
    let mut child = tokio::process::Command::new(program)
        .args(kept)
        .arg("--log-file")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let (Some(stdout), Some(stderr)) = (child.stdout.take(), child.stderr.take()) else {
        return Err(failed("the daemon has no output".to_owned()));
    };
    let mut lines = BufReader::new(stdout).lines();
    let shown = progress::show("waiting for the daemon to be ready");
    let first = tokio::time::timeout(READY_TIMEOUT, lines.next_line()).await;
    drop(shown);
    match first {
        Ok(Ok(Some(line))) => {
            print(&format!("{line}\n"))?;
            // What it has printed besides is there already.
            let rest = async {
                while let Ok(Some(line)) = lines.next_line().await {
                    print(&format!("{line}\n"))?;
                }
                Ok(())
            };
            tokio::time::timeout(Duration::from_millis(50), rest).await.unwrap_or(Ok(()))
        }
        Ok(Ok(None) | Err(_)) => {
            let mut why = String::new();
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                why.push_str(&line);
                why.push('\n');
            }
            let status = child.wait().await.map_err(|error| failed(error.to_string()))?;
            let exit = Exit::of_code(status.code().unwrap_or(1));
            Err(Failure::new(exit, why.trim_end().to_owned()))
        }
        Err(_) => {
            let log = folder.join(HomeFile::Log.as_str());
            Err(failed(format!("the daemon is not ready yet; its log: {}", log.display())))
        }
    }
}
