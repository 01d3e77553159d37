//! Prepares images for models: detects the format by the first bytes, decodes the whole image to
//! reject a broken one, and scales it down to the size that models accept.

use std::io::Cursor;
use std::sync::{Mutex, PoisonError};

use base64::Engine as _;
use image::imageops::FilterType;
use image::{DynamicImage, ImageFormat, ImageReader, Limits};

use crate::domain::{CallError, ErrorKind, Image};

/// Maximum pixels of each side of an image that we send. *Source*: `docs/design/tools.md`.
const SIDE: u32 = 2000;

/// Maximum bytes of an image that we send: providers reject more than 5 MB, and base64 turns three
/// bytes into four.
const SENT: usize = 3_500_000;

/// Maximum bytes of an image file.
pub(super) const MAX_BYTES: u64 = 32 << 20;

/// Maximum pixels of each side of an image that we decode: a small file can hold a large image.
const READ_SIDE: u32 = 16_384;

/// Maximum bytes of memory for decoding an image.
const READ_BYTES: u64 = 256 << 20;

/// Returns the media type of a file that begins with the bytes `start`; `None` unless the file is
/// an image in a format that models accept.
pub(super) fn media_type(start: &[u8]) -> Option<&'static str> {
    format(start).map(|format| format.to_mime_type())
}

fn format(start: &[u8]) -> Option<ImageFormat> {
    let format = image::guess_format(start).ok()?;
    let is_shown = matches!(
        format,
        ImageFormat::Png | ImageFormat::Jpeg | ImageFormat::Gif | ImageFormat::WebP
    );
    is_shown.then_some(format)
}

/// Held while an image is decoded, so that concurrent calls do not multiply the memory.
static READING: Mutex<()> = Mutex::new(());

/// Returns the image in the form that we send to a model. Blocks while another thread decodes an
/// image.
///
/// *Errors*: `tool` if the image is broken or too large, or if its format is unknown.
pub(super) fn attached(bytes: Vec<u8>) -> Result<Image, CallError> {
    let broken = |why: &dyn std::fmt::Display| {
        CallError::new(ErrorKind::Tool, format!("[ERROR: The picture cannot be read: {why}.]"))
    };
    let format = format(&bytes).ok_or_else(|| broken(&"its format is unknown"))?;
    let _one = READING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut limits = Limits::default();
    limits.max_image_width = Some(READ_SIDE);
    limits.max_image_height = Some(READ_SIDE);
    limits.max_alloc = Some(READ_BYTES);
    let mut reader = ImageReader::with_format(Cursor::new(&bytes), format);
    reader.limits(limits);
    let picture = reader.decode().map_err(|error| broken(&error))?;
    let (width, height) = (picture.width(), picture.height());
    if width.max(height) <= SIDE && bytes.len() <= SENT {
        return Ok(image_of(&bytes, format, width, height));
    }
    let picture = if width.max(height) > SIDE {
        picture.resize(SIDE, SIDE, FilterType::Triangle)
    } else {
        picture
    };
    // Send a PNG, which is lossless, unless the image was a JPEG or the PNG is too large.
    let (mut format, mut out) = (ImageFormat::Png, written(&picture, ImageFormat::Png));
    if format_is_lossy(&bytes) || out.as_ref().is_ok_and(|out| out.len() > SENT) {
        format = ImageFormat::Jpeg;
        out = written(&DynamicImage::ImageRgb8(picture.to_rgb8()), format);
    }
    let out = out.map_err(|error| broken(&error))?;
    if out.len() > SENT {
        return Err(broken(&"it is too large for models"));
    }
    Ok(image_of(&out, format, picture.width(), picture.height()))
}

fn format_is_lossy(bytes: &[u8]) -> bool {
    format(bytes) == Some(ImageFormat::Jpeg)
}

fn written(picture: &DynamicImage, format: ImageFormat) -> image::ImageResult<Vec<u8>> {
    let mut out = Cursor::new(Vec::new());
    picture.write_to(&mut out, format)?;
    Ok(out.into_inner())
}

fn image_of(bytes: &[u8], format: ImageFormat, width: u32, height: u32) -> Image {
    Image {
        media_type: format.to_mime_type(),
        width,
        height,
        base64: base64::engine::general_purpose::STANDARD.encode(bytes).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(width: u32, height: u32, format: ImageFormat) -> Vec<u8> {
        let picture = DynamicImage::ImageRgb8(image::RgbImage::from_fn(width, height, |x, y| {
            image::Rgb([x.to_le_bytes()[0], y.to_le_bytes()[0], 7])
        }));
        written(&picture, format).unwrap()
    }

    // conforms 001-T1b
    #[test]
    fn a_small_picture_is_passed_on_as_it_is() {
        for format in [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Gif, ImageFormat::WebP] {
            let bytes = picture(30, 20, format);
            assert_eq!(media_type(&bytes), Some(format.to_mime_type()));
            let image = attached(bytes.clone()).unwrap();
            assert_eq!(
                (image.media_type, image.width, image.height),
                (format.to_mime_type(), 30, 20)
            );
            assert_eq!(*image.base64, *base64::engine::general_purpose::STANDARD.encode(bytes));
        }
    }

    // conforms 001-T1b
    #[test]
    fn a_large_picture_is_made_smaller() {
        let image = attached(picture(4000, 1000, ImageFormat::Png)).unwrap();
        assert_eq!((image.media_type, image.width, image.height), ("image/png", 2000, 500));
        let image = attached(picture(500, 2500, ImageFormat::Jpeg)).unwrap();
        assert_eq!((image.media_type, image.width, image.height), ("image/jpeg", 400, 2000));
    }

    #[test]
    fn what_is_broken_or_a_bomb_is_refused() {
        let mut cut = picture(300, 200, ImageFormat::Png);
        cut.truncate(cut.len() / 2);
        assert_eq!(attached(cut).unwrap_err().kind, ErrorKind::Tool);
        let mut wide = picture(1, 1, ImageFormat::Png);
        // The width in the header: 60,000 pixels.
        wide.splice(16..20, 60_000_u32.to_be_bytes());
        assert!(attached(wide).is_err());
        assert_eq!(media_type(b"plain text"), None);
        assert_eq!(media_type(b"BM\0\0\0\0"), None, "no provider accepts BMP");
    }
}
