//! A model's metadata without its weights: a folder that reads like the checkpoint, and takes next to no room.
//!
//! Configuration, index and card are whole. Of every weight file the header is there, in a file that is as long as the
//! real one and holds nothing else, so that whatever reads headers reads these.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinSet;

use crate::error::HubError;
use crate::http::Client;
use crate::listing::{Listing, RemoteFile};
use crate::select::{self, CARD, CONFIG, INDEX};
use crate::transfer::Source;

/// Most headers are shorter, so one request gets them whole.
const FIRST_PART: u64 = 64 << 10;

/// Fills a folder.
///
/// # Errors
/// When the repository cannot be a checkpoint, or a part of its metadata cannot be had.
pub(crate) async fn preview(client: &Arc<Client>, listing: &Listing, folder: &Path) -> Result<(), HubError> {
    let mut index = None;
    // The configuration first: without one nothing else is asked for.
    let wanted = [Some(select::config(listing)?), listing.file(INDEX), listing.file(CARD)];
    for file in wanted.into_iter().flatten() {
        // A card is for people; one that is too long for them is left out.
        if file.path.as_str() == CARD && file.bytes > client.limits.metadata {
            continue;
        }
        let content = content(client, listing, file).await?;
        let path = folder.join(file.path.as_str());
        std::fs::write(&path, &content).map_err(HubError::disk(&path))?;
        if file.path.as_str() == INDEX {
            index = Some(content);
        }
    }
    let mut rest = select::weight_files(listing, index.as_deref())?.into_iter();
    let mut under_way = JoinSet::new();
    loop {
        while under_way.len() < client.limits.pieces
            && let Some(file) = rest.next()
        {
            let source = Source::new(client, listing, file);
            let path = folder.join(file.path.file_name());
            let (bytes, limit) = (file.bytes, client.limits.metadata);
            under_way.spawn(async move {
                let header = header(&source, bytes, limit).await?;
                write_sparse(&path, &header, bytes).map_err(HubError::disk(&path))
            });
        }
        match under_way.join_next().await {
            None => return Ok(()),
            Some(Ok(done)) => done?,
            Some(Err(error)) => {
                let problem = format!("reading {CONFIG} and headers ended early: {error}");
                return Err(HubError::Answer { host: client.endpoint().to_owned(), problem });
            }
        }
    }
}

/// A whole small file, verified.
async fn content(client: &Arc<Client>, listing: &Listing, file: &RemoteFile) -> Result<Vec<u8>, HubError> {
    let source = Source::new(client, listing, file);
    let content = source.part(0..file.bytes, client.limits.metadata).await?;
    if let Some(digest) = file.digest {
        let mut hasher = digest.start(file.bytes);
        hasher.update(&content);
        if hasher.finish() != digest {
            return Err(source.problem("its content is not what its digest says"));
        }
    }
    Ok(content)
}

/// The length of a safetensors header and the header. What its length says is checked before it is believed.
async fn header(source: &Source, bytes: u64, limit: u64) -> Result<Vec<u8>, HubError> {
    let mut start = source.part(0..bytes.min(FIRST_PART), limit).await?;
    let Some(prefix) = start.first_chunk::<8>() else {
        return Ok(start);
    };
    let length = u64::from_le_bytes(*prefix);
    // What does not fit is left as it is: the reader says so in its own words.
    let Some(end) = length.checked_add(8).filter(|end| *end <= bytes) else {
        return Ok(start);
    };
    if end > limit {
        return Err(source.problem(format!("its header claims {length} bytes; at most {limit} are read")));
    }
    let there = start.len() as u64;
    if end > there {
        start.extend(source.part(there..end, limit).await?);
    }
    start.truncate(usize::try_from(end).unwrap_or(usize::MAX));
    Ok(start)
}

fn write_sparse(path: &Path, header: &[u8], bytes: u64) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(header)?;
    file.set_len(bytes)
}
